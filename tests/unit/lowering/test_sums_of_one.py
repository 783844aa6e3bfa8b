"""A sum of one number begins with a zero, as others do: it is a negative zero in no case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

SUMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x[:, :1].sum(1),
    "keepdim": lambda x: x[:, :1].sum(1, keepdim=True),
    "mean": lambda x: x[:, :1].mean(1),
    "of nothing but a number": lambda x: x[0, 0].sum(),
    "nansum": lambda x: x[:, :1].nansum(1),
    "in f64": lambda x: x[:, :1].sum(1, dtype=torch.float64),
    "cumsum": lambda x: x[:, :1].cumsum(1),
    "windows": lambda x: x.unfold(1, 1, 1).sum(-1),
    "pooling": lambda x: F.avg_pool1d(x[None], 2),
    "pooling of one": lambda x: F.avg_pool1d(x[None], 1),
    "adaptive pooling": lambda x: F.adaptive_avg_pool1d(x[None], 4),
    "dot": lambda x: torch.dot(x[0, :1], x[0, :1].abs() + 1),
    "mv": lambda x: torch.mv(x[:, :1], x[0, :1].abs() + 1),
    "matrices": lambda x: x[:, :1] @ (x[:1].abs() + 1),
    "a row": lambda x: x[:1, :1] @ (x[:1].abs() + 1),
    "a column": lambda x: x[:, :1] @ (x[:1, :1].abs() + 1),
    "batches": lambda x: torch.bmm(x[None, :, :1], x[None, :1].abs() + 1),
    "linear": lambda x: F.linear(x[:, :1], x[:, :1].abs() + 1),
    "addmm": lambda x: torch.addmm(x[:, :1], x[:, :1], x[:1].abs() + 1),
    "baddbmm": lambda x: torch.baddbmm(x[None, :, :1], x[None, :, :1], x[None, :1].abs() + 1),
    "addmv": lambda x: torch.addmv(x[:, 1], x[:, :1], x[0, :1].abs() + 1),
    "addmv of nothing": lambda x: torch.addmv(x[:, 1], x[:, :1], x[0, :1].abs() + 1, beta=0),
}
SCANS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of rows": lambda x: x.cumsum(1),
    "of columns": lambda x: x.cumsum(0),
    "of exponentials": lambda x: x.logcumsumexp(0),
}
UNSUMMED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "prod": lambda x: x[:, :1].prod(1),
    "amax": lambda x: x[:, :1].amax(1),
    "cumprod": lambda x: x[:, :1].cumprod(1),
    "outer": lambda x: torch.outer(x[:, 0], x[0].abs() + 1),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_the_sign_of_zero(dtype: torch.dtype, numerics: str) -> None:
    """Each operator by its own input, so that no two are one kernel's."""
    functions = {**SUMS, **UNSUMMED}
    given = [torch.full((5, 12), -0.0, dtype=dtype) for _ in functions]
    for x in given:
        x[2] = torch.randn(12).to(dtype)

    def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [function(x) for function, x in zip(functions.values(), given, strict=True)]

    close = {"rtol": 2e-2, "atol": 1e-2} if dtype.itemsize == 2 else {}
    results = torch.compile(run, backend="polyfuse", options={"numerics": numerics})(given)
    for name, found, wanted in zip(functions, results, run(given), strict=True):
        torch.testing.assert_close(found, wanted, **close, msg=lambda text, name=name: f"{name}: {text}")
        zero = wanted == 0
        assert zero.any() and torch.equal(found.signbit()[zero], wanted.signbit()[zero]), name


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "halide", "interpreter"])
def test_running_sums_begin_with_zero(backend: str) -> None:
    def run(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [function(x) for function, x in zip(SCANS.values(), given, strict=True)]

    given = [torch.full((5, 40), -0.0) for _ in SCANS]
    found = torch.compile(run, backend="polyfuse", options={"backends": (backend, "interpreter")})(given)
    for name, ours, wanted in zip(SCANS, found, run(given), strict=True):
        torch.testing.assert_close(ours, wanted)
        assert torch.equal(ours.signbit(), wanted.signbit()), name


@pytest.mark.quick(1)
@pytest.mark.parametrize("depth", [1, 3])
def test_a_product_with_a_factor_of_zero_is_not_computed(depth: int) -> None:
    """BLAS reads no matrix then, so infinities in it do not become NaN, and the term keeps its zeros."""

    def run(term: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.addmm(term, left, right, alpha=0),
            torch.addmm(term[0], left, right, alpha=0, beta=0.5),
            torch.addmv(term[:, 1], left, right[:, 0], alpha=0),
            torch.addmv(term[0, 0], left, right[:, 0], alpha=0, beta=2),
            torch.addmv(term[:, 0], left, right[:, 0], alpha=0, beta=0),
        )

    term = torch.tensor([[1.0, -0.0], [2.0, -0.0]])
    operands = term, torch.full((2, depth), torch.inf), torch.ones(depth, 2)
    for found, wanted in zip(torch.compile(run, backend="polyfuse")(*operands), run(*operands), strict=True):
        torch.testing.assert_close(found, wanted)
        assert torch.equal(found.signbit(), wanted.signbit())
