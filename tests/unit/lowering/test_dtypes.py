"""Operators on the dtypes that models use less: integers, truth values, half precision."""

from __future__ import annotations

import pytest
import torch
from lowered import check

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


@pytest.mark.parametrize("size", [{"size": (5, 7)}, {"scale_factor": 1.7}])
def test_bytes_are_resampled_as_eager_mode_rounds(size: dict[str, object]) -> None:
    x = torch.arange(240).reshape(1, 2, 10, 12).to(torch.uint8)
    check(lambda x: F.interpolate(x, mode="bicubic", **size), x, native=False)


def test_bounds_of_half_precision_are_not_rounded() -> None:
    x = torch.tensor([0.1, -0.1, 0.5]).bfloat16()
    check(lambda x: F.softshrink(x, 0.1), x, exact=True)


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
