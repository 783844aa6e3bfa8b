"""Running sums and products of f32 are in double precision where those of eager mode are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from polyfuse.compiler.reports.report import last_reports, reset_reports

LONG = 20_000


def _run(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, backend: str) -> torch.Tensor:
    torch.compiler.reset()
    reset_reports()
    compiled = torch.compile(function, backend="polyfuse", options={"backends": [backend], "strict": True})
    return compiled(x)


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "interpreter"])
def test_products_leave_the_range_and_come_back(backend: str) -> None:
    x = torch.tensor([1e-30, 1e-30, 1e30, 1e30]).repeat(3, 5)
    torch.testing.assert_close(_run(lambda x: x.cumprod(1), x, backend), x.cumprod(1))
    torch.testing.assert_close(_run(lambda x: x.t().cumprod(0) * 2, x, backend), x.t().cumprod(0) * 2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("shape", [(64, 3000), (3000, 64)])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_are_as_exact_as_in_eager_mode(shape: tuple[int, int], dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    exact = x.double().cumsum(dim)
    found = _run(lambda x: x.cumsum(dim), x, "cpp")
    assert (found - exact).abs().max() <= 1.01 * (x.cumsum(dim) - exact).abs().max()
    (report,) = last_reports()
    assert report.kernels == 1  # totals in double precision are nowhere stored


def test_few_long_rows_are_not_stored_in_double_precision() -> None:
    eighths = torch.randint(-800, 900, (LONG,)) / 8  # sums of them are exact in f32, in any order
    torch.testing.assert_close(_run(lambda x: x.cumsum(0), eighths, "cpp"), eighths.cumsum(0), rtol=0, atol=0)
    (report,) = last_reports()
    assert report.kernels == 1
    x = 1 + 1e-3 * torch.rand(LONG)
    exact = x.double().cumsum(0)
    # three standard deviations of as many roundings as there are numbers, the most that an order can take
    limit = 2**-24 * math.sqrt(LONG) * exact
    assert ((_run(lambda x: x.cumsum(0), x, "cpp") - exact).abs() <= limit).all()
    torch.testing.assert_close(_run(lambda x: x.cumprod(0), x, "cpp"), x.cumprod(0), rtol=0, atol=0)
    (report,) = last_reports()
    assert report.kernels == 0


def test_16_bits_are_summed_in_f32() -> None:
    x = torch.randn(64, 300, dtype=torch.bfloat16)
    torch.testing.assert_close(_run(lambda x: x.cumsum(1), x, "cpp"), x.cumsum(1))
