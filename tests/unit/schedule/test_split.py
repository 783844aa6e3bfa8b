"""Long reductions with few results become two kernels on a wide device, with the same result."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from polyfuse.ir.expr import index_value
from polyfuse.ir.interpreter.semantics import reduce as reduced
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.ops import REDUCTIONS
from polyfuse.ir.types import DType
from polyfuse.plugin import TargetInfo
from polyfuse.plugin.target_info import near_divisor
from polyfuse.schedule import Launch, Schedule
from polyfuse.schedule.reductions.split import _cut
from polyfuse.symbolic import symbol
from schedule_builder import Anything, Maker, axes, run
from wide_device import WIDE, WideBackend, wide

KINDS = (
    "sum",
    "prod",
    "min",
    "max",
    "any",
    "all",
    "argmin",
    "argmax",
    "welford",
    "online_softmax",
    "xor_sum",
)


class Wide(Anything):
    """A wide device."""

    def target_info(self, device: str) -> TargetInfo:
        return WIDE


class LooksBack(WideBackend):
    """A wide device whose backend spreads long scans over it."""

    chosen = replace(WIDE, scans_look_back=True)


def _values(kind: str, *size: int) -> torch.Tensor:
    if kind in ("any", "all"):
        return torch.rand(size) < (0.001 if kind == "any" else 0.999)
    if kind == "xor_sum":
        return torch.randint(0, 1 << 20, size, dtype=torch.int32)
    x = torch.randn(size)
    return x * 0.01 + 1 if kind == "prod" else x


def _dtype(kind: str) -> DType:
    return DType.bool if kind in ("any", "all") else DType.i32 if kind == "xor_sum" else DType.f32


def _schedule(kind: str, rows: int, length: Any, layout: str, **hints: int) -> Schedule:
    make = Maker(backend=Wide, hints=hints)
    dtype = _dtype(kind)
    stride = {"rows": (length, 1), "columns": (1, rows)}[layout]
    make.buffer("x", rows, length, stride=stride, dtype=dtype, kind="input")
    names = [f"out{k}" for k in range(REDUCTIONS[kind].results)]
    for k, name in enumerate(names):
        make.buffer(name, rows, dtype=DType.i64 if kind.startswith("arg") and k else dtype)
    (i,), (r,) = axes(rows), axes(length, prefix="r")
    values = [make.load("x", i, r)]
    if kind.startswith("arg"):
        values.append(index_value(r))
    make.reduce(tuple(names), (i,), (r,), kind, *values)
    return make.schedule(*names)


@pytest.mark.quick(33)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("length", [1024, 997, 1500])
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_that_of_one_reduction(kind: str, length: int, layout: str) -> None:
    schedule = _schedule(kind, 3, length, layout)
    x = _values(kind, 3, length)
    x = x if layout == "rows" else x.t().contiguous().t()
    memory = run(schedule, {"x": x})
    position = torch.arange(length).expand(3, length)
    wanted = reduced(kind, (x, position) if kind.startswith("arg") else (x,), _dtype(kind))
    for k, expected in enumerate(wanted):
        torch.testing.assert_close(memory[f"out{k}"].reshape(3), expected, rtol=1e-5, atol=1e-6)
    # a prime number of elements has no equal splits, and partial means need them
    assert len(schedule.steps) == (1 if kind == "welford" and length == 997 else 2)


@pytest.mark.parametrize("kind", ["min", "max", "argmin", "argmax", "online_softmax", "sum"])
def test_edge_values_survive(kind: str) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.randn(6, 997)
    x[0] = -inf
    x[1] = inf
    x[2, 500] = nan
    x[3, 900:] = -inf
    x[4] = 2.0
    x[5, 3], x[5, 800] = -0.0, inf
    schedule = _schedule(kind, 6, 997, "rows")
    memory = run(schedule, {"x": x})
    position = torch.arange(997).expand(6, 997)
    wanted = reduced(kind, (x, position) if kind.startswith("arg") else (x,), DType.f32)
    finite = torch.tensor([True] * 6)
    if kind == "online_softmax":
        # rows of infinities alone have no sum
        finite[0] = finite[1] = False
    for k, expected in enumerate(wanted):
        found = memory[f"out{k}"].reshape(6)
        torch.testing.assert_close(found[finite], expected[finite], equal_nan=True)


def test_sizes_known_when_called() -> None:
    n = symbol("s0", 2)
    schedule = _schedule("sum", 2, n, "rows", s0=4000)
    assert len(schedule.steps) == 2
    for length in (2, 63, 64, 65, 4000, 4001):
        x = torch.randn(2, length)
        memory = run(schedule, {"x": x}, {"s0": length})
        torch.testing.assert_close(memory["out0"].reshape(2), x.sum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "length"), [(3, 100), (64, 4096), (200, 1000)])
def test_short_loops_and_many_rows_stay_whole(rows: int, length: int) -> None:
    assert len(_schedule("sum", rows, length, "rows").steps) == 1


def test_columns_that_lie_together_count_as_one_row_of_groups() -> None:
    # eight neighbouring columns make one group's work, so that 64 columns are few
    assert len(_schedule("sum", 64, 4096, "columns").steps) == 2


def test_a_device_that_is_not_wide_keeps_them_whole() -> None:
    make = Maker()
    make.buffer("x", 1 << 20, kind="input")
    make.buffer("out0")
    (r,) = axes(1 << 20, prefix="r")
    make.reduce("out0", (), (r,), "sum", make.load("x", r))
    assert len(make.schedule("out0").steps) == 1


def test_whole_loops_are_taken_before_one_is_cut() -> None:
    make = Maker(backend=Wide)
    make.buffer("x", 8, 16, 32, kind="input")
    make.buffer("out0")
    a, b, c = axes(8, 16, 32, prefix="r")
    make.reduce("out0", (), (a, b, c), "sum", make.load("x", a, b, c))
    schedule = make.schedule("out0")
    partial = schedule.graph.nodes[0]
    assert isinstance(partial, Reduction)
    assert [str(n) for n in partial.sizes] == ["8", "8"] and [str(n) for n in partial.rsizes] == ["2", "32"]
    x = torch.randn(8, 16, 32)
    torch.testing.assert_close(run(schedule, {"x": x})["out0"].reshape(()), x.sum())


def test_cuts_are_near_what_is_wanted() -> None:
    for extent, wanted in itertools.product((96, 97, 1000, 4096, 10_000_019), (2, 7, 60, 500)):
        count = near_divisor(extent, wanted)
        assert count == 0 or (extent % count == 0 and 0.6 * wanted <= count <= 1.7 * wanted)
        count, length = _cut(extent, wanted)
        assert isinstance(length, int) and count * length >= extent


def test_softmax_of_few_long_rows_reads_them_twice() -> None:
    x = torch.randn(2, 3000)
    x[1, :2500] = float("-inf")
    run_wide, record = wide(lambda x: torch.softmax(x * 2, -1))
    torch.testing.assert_close(run_wide(x), torch.softmax(x * 2, -1))
    launches = record.schedules[0].steps
    assert len(launches) == 3
    assert sum("arg0_1" in s.reads for s in launches) == 2
    assert record.decisions("split")


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(4, 6, 16, 16), (5, 3, 9, 11)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_in_training(shape: tuple[int, ...], layout: torch.memory_format) -> None:
    def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
        y = torch.nn.functional.batch_norm(x, m, v, w, b, training=True)
        return y, torch.autograd.grad(y.square().mean(), (x, w, b))

    def arguments() -> list[torch.Tensor]:
        torch.manual_seed(3)
        x = torch.randn(shape).to(memory_format=layout).requires_grad_()
        w, b = (torch.randn(shape[1]).requires_grad_() for _ in range(2))
        return [x, w, b, torch.zeros(shape[1]), torch.ones(shape[1])]

    mine, theirs = arguments(), arguments()
    model = torch.nn.functional.batch_norm
    run_wide, record = wide(lambda x, m, v, w, b: model(x, m, v, w, b, training=True))
    y = run_wide(mine[0], mine[3], mine[4], mine[1], mine[2])
    grads = torch.autograd.grad(y.square().mean(), mine[:3])
    wanted, wanted_grads = step(*theirs)
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-5)
    for a, b in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    for a, b in zip(mine[3:], theirs[3:], strict=True):
        torch.testing.assert_close(a, b)
    assert record.decisions("split")


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["sum", "prod"])
@pytest.mark.parametrize("shape", [(1, 4096), (3, 1024), (2, 997)])
@pytest.mark.parametrize("dim", [0, 1])
def test_long_scans_with_few_rows(kind: str, shape: tuple[int, int], dim: int) -> None:
    x = torch.randn(shape) if kind == "sum" else 1 + torch.randn(shape) / 100
    x = x if dim else x.t().contiguous()
    scan = torch.cumsum if kind == "sum" else torch.cumprod

    def function(x: torch.Tensor) -> torch.Tensor:
        return scan(x * 2 if kind == "sum" else x, dim) + 1

    run_wide, record = wide(function)
    torch.testing.assert_close(run_wide(x), function(x), rtol=1e-4, atol=1e-4)
    if shape[1] == 997:
        # no equal splits: the library has another way
        assert any("aten.cum" in line for line in record.texts[0].splitlines() if "operator(" in line)
    else:
        assert len(record.schedules[0].steps) == 3 and record.decisions("split")


@pytest.mark.parametrize("shape", [(2, 4096), (2, 997)])
def test_scans_whose_chunks_look_back_stay_whole(shape: tuple[int, int]) -> None:
    x = torch.randn(shape)
    for dim, whole in ((1, True), (0, False)):
        run_wide, record = wide(lambda x: torch.cumsum(x * 2, dim) + 1, backend=LooksBack)  # noqa: B023
        given = x if whole else x.t().contiguous()
        torch.testing.assert_close(run_wide(given), torch.cumsum(given * 2, dim) + 1, rtol=1e-4, atol=1e-4)
        assert (len(record.schedules[0].steps) == 1 and not record.decisions("split")) is whole


def test_scans_that_look_back_are_with_nothing_that_reduces() -> None:
    x = torch.randn(2, 997)
    run_wide, record = wide(lambda x: (torch.cumsum(x, 1) * x, x.var(1)), backend=LooksBack)
    for got, wanted in zip(run_wide(x), (torch.cumsum(x, 1) * x, x.var(1)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    kernels = [step.kernel for step in record.schedules[0].steps if isinstance(step, Launch)]
    ops = [{s.op for part in k.sections for s in part.body} for k in kernels]
    assert sum("scan" in o for o in ops) == 1 and not any({"scan", "reduce"} <= o for o in ops)


def test_scans_of_numbers_that_wrap() -> None:
    x = torch.randint(-(2**40), 2**40, (2, 2048))
    run_wide, _ = wide(lambda x: (x.cumsum(1), x.cumprod(1)))
    assert torch.equal(run_wide(x)[0], x.cumsum(1)) and torch.equal(run_wide(x)[1], x.cumprod(1))


def test_scans_that_meet_what_is_no_number() -> None:
    x = torch.randn(2, 4096)
    x[0, 1000], x[1, 3] = float("inf"), float("nan")
    run_wide, _ = wide(lambda x: x.cumsum(1))
    torch.testing.assert_close(run_wide(x), x.cumsum(1), rtol=1e-4, atol=1e-4, equal_nan=True)
