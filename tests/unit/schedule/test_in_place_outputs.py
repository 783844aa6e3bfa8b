"""Library calls write their results into the larger tensors that these are copied to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.schedule import Schedule
from schedule_builder import Maker, axes, reasons


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    reset_reports()
    yield
    reset_reports()


def run(function: Callable[..., Any], *args: Any, dynamic: bool = False, **options: Any) -> GraphReport:
    """Compile, compare with eager mode, and say what was made."""
    compiled = torch.compile(
        function, backend="polyfuse", dynamic=dynamic, options={"verify": 2, "strict": True, **options}
    )
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), function(*args))
    return last_reports()[-1]


def in_place(report: GraphReport) -> int:
    return sum(decision.kind == "in_place_output" for decision in report.decisions)


A, B, C = torch.randn(64, 32), torch.randn(32, 48), torch.randn(32, 16)
BIAS = torch.randn(48)
WHOLE: dict[str, Callable[[], Tensor]] = {
    "columns": lambda: torch.cat([A @ B, A @ C], 1),
    "rows": lambda: torch.cat([A @ B, A @ (B * 2)], 0),
    "with a bias": lambda: torch.cat([torch.addmm(BIAS, A, B), A @ C], 1),
    "rows of three dimensions": lambda: torch.cat([F.linear(A.view(4, 16, 32), w.t()) for w in (B, C)], -1),
    "stacked": lambda: torch.stack([A @ B, A @ (B + 1)]),
    "batches": lambda: torch.cat([torch.bmm(A.view(4, 16, 32), A.view(4, 32, 16) + k) for k in (0, 1)]),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", WHOLE)
def test_matmuls_are_written_into_their_slices(name: str) -> None:
    function = WHOLE[name]
    report = run(function)
    assert in_place(report) == 2 and "aten.cat.out" not in report.calls


def test_nothing_is_moved_but_what_matmuls_need() -> None:
    joined, separate = run(lambda: torch.cat([A @ B, A @ C], 1)), run(lambda: (A @ B, A @ C))
    assert joined.bytes_after == separate.bytes_after and joined.kernels == 0


def test_other_parts_are_written_beside_them() -> None:
    report = run(lambda a, b, x: torch.cat([a @ b, x.relu(), x], 1), A, B, torch.randn(64, 5))
    assert in_place(report) == 1 and report.calls == ("aten.mm.out",)


@pytest.mark.slow
def test_sizes_that_are_not_known() -> None:
    function = lambda a, b: torch.cat([a @ b, (a + 1) @ b], 1)  # noqa: E731
    report = run(function, A, B, dynamic=True)
    assert in_place(report) == 2
    compiled = torch.compile(function, backend="polyfuse", dynamic=True)
    for rows in (1, 2, 33):
        a = torch.randn(rows, 7)
        b = torch.randn(7, 5)
        torch.testing.assert_close(compiled(a, b), function(a, b))


def test_a_matmul_that_is_needed_elsewhere_stays_where_it_is() -> None:
    def twice(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        product = a @ b
        return torch.cat([product, a @ c], 1), product

    report = run(twice, A, B, C)
    assert in_place(report) <= 1


@pytest.mark.usefixtures("interpreted_kernels")
def test_an_operand_that_changes_meanwhile() -> None:
    """The product is of what the operand was, though it is copied after that has changed."""

    def changing(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        product = a @ b
        a.add_(1)
        out[:, : b.shape[1]] = product
        return out * 2

    a, out = A.clone(), torch.zeros(64, 60)
    wanted = changing(a.clone(), B, out.clone())
    found = torch.compile(changing, backend="polyfuse")(a, B, out)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(a, A + 1)


def test_parts_of_a_tensor_that_was_filled_before() -> None:
    def filled(a: Tensor, b: Tensor) -> Tensor:
        whole = torch.ones(a.shape[0], b.shape[1] + 4)
        whole[:, 2:-2] = a @ b
        return whole

    run(filled, A, B)


@pytest.mark.usefixtures("interpreted_kernels")
def test_training() -> None:
    def both(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.cat([a @ b, a @ c], 1).sin()

    leaves = [t.clone().requires_grad_() for t in (A, B, C)]
    others = [t.clone().requires_grad_() for t in (A, B, C)]
    wanted, found = both(*leaves), torch.compile(both, backend="polyfuse")(*others)
    wanted.sum().backward()
    found.sum().backward()
    torch.testing.assert_close(found, wanted)
    for leaf, other in zip(leaves, others, strict=True):
        torch.testing.assert_close(other.grad, leaf.grad)


def test_generated_matmuls_write_there_too() -> None:
    report = run(lambda a, b, c: torch.cat([a @ b, a @ c], 1), A, B, C, gemm="generated")
    assert report.calls == () and report.kernels == 2


def scheduled(columns: int, start: int, device: str, op: str = "aten.mm.out") -> Schedule:
    """A product of 64 rows that is copied into columns of a wider tensor."""
    make = Maker()
    for name, size in (("x", (64, 32)), ("y", (32, columns))):
        make.buffer(name, *size, kind="input", device=device)
    make.buffer("p", 64, columns, device=device)
    make.buffer("o", 64, 128, device=device)
    make.call(op, ("p",), "x", "y", out="out")
    i, j = axes(64, columns)
    make.pointwise("o", (i, j), make.load("p", i, j), i, j + start)
    return make.schedule("o")


def test_devices_want_rows_at_round_addresses() -> None:
    for columns, start, device, expected in (
        (32, 64, "cuda:0", 1),
        (30, 64, "cuda:0", 1),
        (32, 6, "cuda:0", 0),
        (32, 6, "cpu", 1),
    ):
        schedule = scheduled(columns, start, device)
        assert len(reasons(schedule, "in_place_output")) == expected
        assert len(schedule.steps) == 2 - expected


def test_operators_that_want_their_results_together_keep_them() -> None:
    assert not reasons(scheduled(32, 64, "cpu", "aten.cumsum.out"), "in_place_output")
