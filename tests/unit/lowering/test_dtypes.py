"""Operators on the dtypes that models use less: integers, truth values, half precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lowered import check

from polyfuse.ir.text.print import text

F = torch.nn.functional


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_extremes_that_ignore_nan(dtype: torch.dtype) -> None:
    x, y = torch.tensor([0, 1, 3, 200]).to(dtype), torch.tensor([1, 1, 2, 7]).to(dtype)
    check(lambda x, y: (torch.fmax(x, y), torch.fmin(x, y)), x, y)


def test_averages_of_integers_are_cut_off() -> None:
    x = torch.arange(-50, 50).reshape(1, 2, 5, 10)
    check(lambda x: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)), x)


def test_running_extremes_of_truth_values() -> None:
    x = torch.tensor([[True, False, True, True], [False, False, True, False]])
    check(lambda x: (*x.cummax(1), *x.cummin(0)), x)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_packed_numbers_are_unpacked_by_shifting_by_a_tensor(dtype: torch.dtype) -> None:
    x, by = torch.tensor([[0], [77], [200]]).to(dtype), torch.arange(0, 8, 2, dtype=dtype)

    def fn(x: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, ...]:
        up = x.expand(3, 4).clone()
        up <<= by
        return (x >> by) & 3, x << by, up

    check(fn, x, by)


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [{"size": (5, 7)}, {"scale_factor": 1.7}])
def test_bytes_are_resampled_as_eager_mode_rounds(size: dict[str, object]) -> None:
    x = torch.arange(240).reshape(1, 2, 10, 12).to(torch.uint8)
    check(lambda x: F.interpolate(x, mode="bicubic", **size), x, native=False)


def test_bounds_of_half_precision_are_not_rounded() -> None:
    x = torch.tensor([0.1, -0.1, 0.5]).bfloat16()
    check(lambda x: F.softshrink(x, 0.1), x, exact=True)


@pytest.mark.each_value
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_compared_in_half_precision(dtype: torch.dtype, numerics: str) -> None:
    x = torch.tensor([0.1, -0.1, 0.3, 1 / 3, 256.0, 2.5]).to(dtype)
    single = torch.tensor(0.1)

    def fn(x: torch.Tensor, single: torch.Tensor) -> list[torch.Tensor]:
        tests = [x > 0.1, x == 0.1, x <= 1 / 3, x < single, x > 257]
        return [*tests, torch.remainder(x, 0.3), torch.fmod(x, 0.3)]

    check(fn, x, single, numerics=numerics, exact=True)


def test_numbers_are_added_in_half_precision_where_eager_rounding_is_asked_for() -> None:
    x = torch.linspace(-8, 8, 101).bfloat16()
    single = torch.tensor(0.1)

    def fn(x: torch.Tensor, single: torch.Tensor) -> list[torch.Tensor]:
        sums = [x + 0.1, x - 0.1, 0.1 - x, x + single, torch.add(x, x, alpha=0.1)]
        return [*sums, x * 0.1, x / 0.1, x.abs() ** 0.1]

    check(fn, x, single, numerics="eager", exact=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_neighbours_in_half_precision(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -2.5]).to(dtype)
    check(lambda x: torch.nextafter(x, x + 1), x, native=False, exact=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_between_operators_are_judged_as_eager_mode_stores_them(
    dtype: torch.dtype, numerics: str
) -> None:
    x, y = torch.randn(40, 60).to(dtype), torch.randn(40, 60).to(dtype)

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        p = x * y
        tests = [p > 0.25, p == 0.5, p == p.amax(0), p >= y.abs() * 0.5]
        steps = [p.floor(), (p * 8).round(), p.ceil(), p.trunc(), (x * 99).to(torch.int32)]
        parts = [p % 0.3, torch.fmod(p, 0.3), p // 0.3, torch.div(p, y * 0.1, rounding_mode="trunc")]
        return [*tests, *steps, *parts, p.argmax(0), *p.min(1)]

    check(fn, x, y, numerics=numerics, exact=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_extremes_find_them_among_rounded_values(dtype: torch.dtype) -> None:
    x, y = torch.randn(8, 50).to(dtype).requires_grad_(), torch.randn(8, 50).to(dtype)

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad((x * y).amax(1).sum(), x)[0]

    check(fn, x, y)


def test_overflow_of_half_precision_is_seen() -> None:
    x = torch.tensor([300.0, 200.0, -300.0]).half()
    check(lambda x: (torch.isinf(x * x), torch.isfinite(x * 250), (x * 250) == float("inf")), x, exact=True)


def test_values_that_half_precision_holds_are_not_rounded_again() -> None:
    x, y = torch.randn(9).bfloat16(), torch.randn(9).bfloat16()

    def is_rounded(fn: Callable[..., torch.Tensor]) -> bool:
        return any("= cast bf16" in line for line in text(check(fn, x, y).graph).splitlines())

    assert not is_rounded(lambda x, y: torch.relu(-x).maximum(y.abs()) > 0.5)
    assert not is_rounded(lambda x, y: x * y > 0)
    assert is_rounded(lambda x, y: x * y > 0.5)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_that_was_asked_for_is_done(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.to(dtype).float(),
            x.double().to(dtype).t().float() * 2,
            (x.exp().to(dtype).view(-1).double() - x.exp().view(-1).double()).abs(),
        ]

    x = torch.tensor([[1e-9, 0.1, -3.3, 1e5], [float("inf"), float("nan"), -0.0, 7.77]])
    check(fn, x, exact=True)
