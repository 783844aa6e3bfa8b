"""Equal results in every run, where torch or the option `deterministic` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.compiler.reports.report import last_reports, reset_reports
from wide_device import wide

ROWS, COLUMNS, PUT = 40, 7, 30_000
"""Columns that no number of lanes divides, and enough values that threads share the work."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    reset_reports()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(ROWS, COLUMNS), torch.randint(0, ROWS, (PUT,)), torch.randn(PUT, COLUMNS)


OPERATORS: dict[str, Callable[..., torch.Tensor]] = {
    "put": lambda x, i, v: x.index_put((i,), v),
    "accumulate": lambda x, i, v: x.index_put((i,), v, accumulate=True),
    "copy": lambda x, i, v: x.index_copy(0, i, v),
    "add": lambda x, i, v: x.index_add(0, i, v),
    "scatter": lambda x, i, v: x.scatter(0, i[:, None].expand_as(v), v),
    "scatter_add": lambda x, i, v: x.scatter_add(0, i[:, None].expand_as(v), v),
    "product": lambda x, i, v: x.scatter_reduce(0, i[:, None].expand_as(v), v.sign(), "prod"),
    "mean": lambda x, i, v: x.scatter_reduce(0, i[:, None].expand_as(v), v, "mean"),
    "one dimension": lambda x, i, v: x[:, 0].index_add(0, i, v[:, 0]),
    "put in one dimension": lambda x, i, v: x[:, 0].index_put((i,), v[:, 0]),
    "counted": lambda x, i, v: torch.bincount(i, v[:, 0], minlength=ROWS),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("warn_only", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_values_for_one_index_are_stored_in_order(name: str, warn_only: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    function, inputs = OPERATORS[name], _inputs()
    run = torch.compile(function, backend="polyfuse")
    first = run(*inputs)
    # the last value, or the sum from the first on
    torch.testing.assert_close(first, function(*inputs), rtol=1e-5, atol=1e-4)
    if "put" in name or name in ("copy", "scatter"):
        assert torch.equal(first, function(*inputs))
    for _ in range(5):
        assert torch.equal(run(*inputs), first)


@pytest.mark.slow
def test_gradients_too() -> None:
    torch.use_deterministic_algorithms(True)
    table = torch.randn(ROWS, COLUMNS, requires_grad=True)
    index = torch.randint(0, ROWS, (PUT,))
    run = torch.compile(lambda t, i: torch.nn.functional.embedding(i, t).sin().sum(), backend="polyfuse")
    gradients = [torch.autograd.grad(run(table, index), table)[0] for _ in range(4)]
    assert all(torch.equal(g, gradients[0]) for g in gradients)


def _ordered(folder: Path) -> int:
    """How many of the kernels that were dumped store in order."""
    texts = [path.read_text() for path in sorted(folder.glob("*/kernel*.ir"))]
    assert texts
    return sum("numerics fast, deterministic\n" in text for text in texts)


def test_the_backward_follows_the_forward(tmp_path: Path) -> None:
    table = torch.randn(ROWS, COLUMNS, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    run = torch.compile(lambda t, i: t[i].sin().sum(), backend="polyfuse", options={"dump": str(tmp_path)})
    loss = run(table, torch.randint(0, ROWS, (PUT,)))
    torch.use_deterministic_algorithms(False)
    loss.backward()
    assert _ordered(tmp_path) == 1


def test_torchs_switch_is_followed(tmp_path: Path) -> None:
    run = torch.compile(OPERATORS["add"], backend="polyfuse", options={"dump": str(tmp_path)})
    inputs = _inputs()
    seen = []
    for asked in (False, True, False, True):
        torch.use_deterministic_algorithms(asked)
        run(*inputs)
        seen.append((len(last_reports()), _ordered(tmp_path)))
    assert seen == [(1, 0), (2, 1), (2, 1), (2, 1)]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("option", "asked", "expected"), [("on", False, 1), ("off", True, 0)])
def test_the_option_decides_over_it(tmp_path: Path, option: str, asked: bool, expected: int) -> None:
    torch.use_deterministic_algorithms(asked)
    options: dict[str, Any] = {"dump": str(tmp_path), "deterministic": option}
    torch.compile(OPERATORS["add"], backend="polyfuse", options=options)(*_inputs())
    assert _ordered(tmp_path) == expected


def test_kernels_without_such_stores_are_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dump": str(tmp_path), "deterministic": "on"}
    torch.compile(lambda x: x.sin().sum(0), backend="polyfuse", options=options)(torch.randn(5, 6))
    assert _ordered(tmp_path) == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["put", "accumulate", "scatter_add"])
def test_a_wide_device_leaves_them_to_eager_mode(name: str) -> None:
    inputs = _inputs()
    if name == "accumulate":  # a table of many rows: what is added to few is summed in a fixed order
        inputs = torch.randn(1000, COLUMNS), torch.randint(0, 1000, (PUT,)), torch.randn(PUT, COLUMNS)
    torch.set_num_threads(1)  # with several, eager mode itself keeps any of the values put to one index
    for option, calls in (("off", False), ("on", True)):
        run, planned = wide(OPERATORS[name], deterministic=option)
        result = run(*inputs)
        assert ("aten." in planned.texts[0].partition("def call")[0]) == calls
    torch.testing.assert_close(result, OPERATORS[name](*inputs), rtol=1e-4, atol=1e-3)


@pytest.mark.quick(1)
@pytest.mark.parametrize("option", ["off", "on"])
def test_a_wide_device_adds_to_few_rows_in_a_fixed_order(option: str) -> None:
    inputs = _inputs()
    run, planned = wide(OPERATORS["accumulate"], deterministic=option)
    torch.testing.assert_close(run(*inputs), OPERATORS["accumulate"](*inputs), rtol=1e-4, atol=1e-3)
    assert "aten." not in planned.texts[0].partition("def call")[0]


def test_a_wide_device_takes_the_largest_in_any_order() -> None:
    x, i, v = _inputs()

    def largest(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, i[:, None].expand_as(v), v, "amax")

    run, planned = wide(largest, deterministic="on")
    assert torch.equal(run(x, i, v), largest(x, i, v))
    assert "aten." not in planned.texts[0].partition("def call")[0]


@pytest.mark.parametrize("filled", [True, False])
def test_uninitialised_memory_holds_what_eager_mode_fills_it_with(filled: bool) -> None:
    """Where it is read: whole, beside what a slice was written to, and as operand."""

    def make(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = torch.empty_like(x)
        part[1:] = x[1:]
        kinds = (torch.float64, torch.bfloat16, torch.uint8, torch.int16, torch.int64, torch.bool)
        return part, x.new_empty(4) + 1, *(torch.empty(3, dtype=kind) for kind in kinds)

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = filled
    try:
        x = torch.randn(4, 3)
        found = torch.compile(make, backend="polyfuse", options={"backends": ["interpreter"]})(x)
        if filled:
            torch.testing.assert_close(found, make(x), equal_nan=True, rtol=0, atol=0)
        else:
            assert found[0][0].eq(0).all() and all(t.eq(0).all() for t in found[2:])
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
