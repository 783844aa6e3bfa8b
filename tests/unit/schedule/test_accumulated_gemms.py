"""Sums of matmuls are added up by the calls that make them, in the memory of what they are added to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    reset_reports()
    yield
    reset_reports()


def run(function: Callable[..., Any], *args: Any, dynamic: bool = False, **options: Any) -> GraphReport:
    """Compile, compare with eager mode in double precision, and say what was made."""
    chosen = {"verify": 2, "strict": True, "gemm": "library", "backends": ["cpp"], **options}
    compiled = torch.compile(function, backend="polyfuse", dynamic=dynamic, options=chosen)
    with torch.no_grad():
        for _ in range(2):
            exact = function(*(a.double() if a.is_floating_point() else a for a in args))
            torch.testing.assert_close(compiled(*args).double(), exact, rtol=1e-4, atol=1e-3)
    return last_reports()[-1]


def taken(report: GraphReport) -> int:
    return sum(decision.kind == "accumulate" for decision in report.decisions)


A, B, C, D = (torch.randn(24, 32) for _ in range(4))
T = torch.randn(32, 32)


def of(x: Tensor, y: Tensor) -> Tensor:
    return x.t() @ y


SUMS: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "two": (1, lambda a, b, c, d, t: of(a, b) + of(c, d)),
    "the other order": (1, lambda a, b, c, d, t: (lambda first, second: second + first)(of(a, b), of(c, d))),
    "three": (2, lambda a, b, c, d, t: of(a, b) + of(c, d) + of(a, d)),
    "a term of the program's own": (2, lambda a, b, c, d, t: t.sort(0)[0] + of(a, b) + of(c, d)),
    "something else after it": (1, lambda a, b, c, d, t: of(a, b) + of(c, d) + t.exp()),
    "batches": (1, lambda a, b, c, d, t: of3(a, b) + of3(c, d)),
    "an input, which stays as it is": (0, lambda a, b, c, d, t: t + of(a, b)),
    "the transposed one": (0, lambda a, b, c, d, t: of(a, b) + of(c, d).t()),
    "a square": (0, lambda a, b, c, d, t: (lambda m: m + m.square())(of(a, b))),
    "one that is read again": (
        0,
        lambda a, b, c, d, t: (lambda m, n: (m + n).sum(0) + n * m)(of(a, b), of(c, d)),
    ),
    "a difference": (0, lambda a, b, c, d, t: of(a, b) - of(c, d)),
}


def of3(x: Tensor, y: Tensor) -> Tensor:
    return torch.bmm(x.view(4, 6, 32).transpose(1, 2), y.view(4, 6, 32))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_matmuls(name: str) -> None:
    expected, function = SUMS[name]
    report = run(function, A, B, C, D, T)
    assert taken(report) == expected


@pytest.mark.quick(1)
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_added_to_is_written_over(dtype: torch.dtype, native: bool) -> None:
    a, b, c, d, t = (x.to(dtype) for x in (A, B, C, D, T))
    report = run(SUMS["three"][1], a, b, c, d, t, native_host=native)
    assert taken(report) == 2 and report.kernels == 0


@pytest.mark.slow
def test_types_that_are_rounded_and_eager_numerics_keep_their_sums() -> None:
    low = [x.bfloat16() for x in (A, B, C, D, T)]
    compiled = torch.compile(SUMS["two"][1], backend="polyfuse", options={"strict": True, "gemm": "library"})
    torch.testing.assert_close(compiled(*low), SUMS["two"][1](*low), rtol=2e-2, atol=0.2)
    assert taken(last_reports()[-1]) == 0
    assert taken(run(SUMS["two"][1], A, B, C, D, T, numerics="eager")) == 0


def test_sizes_that_are_not_known() -> None:
    function = SUMS["three"][1]
    assert taken(run(function, A, B, C, D, T, dynamic=True)) == 2
    compiled = torch.compile(function, backend="polyfuse", dynamic=True)
    for rows in (1, 2, 40):
        args = [torch.randn(rows, 7) for _ in range(4)]
        torch.testing.assert_close(compiled(*args, T), function(*args, T), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("interpreted_kernels")
def test_the_gradient_of_a_weight_that_every_step_uses() -> None:
    w = (torch.randn(32, 32) / 8).requires_grad_()

    def function(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(6):
            x = torch.tanh(x @ w)
        return x.sum()

    compiled = torch.compile(function, backend="polyfuse", options={"strict": True, "gemm": "library"})
    compiled(A, w).backward()
    exact = w.detach().double().requires_grad_()
    function(A.double(), exact).backward()
    torch.testing.assert_close(w.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)
    backward = next(r for r in last_reports() if r.kind == "backward")
    assert taken(backward) == 5 and backward.calls.count("aten.addmm.out") == 5
