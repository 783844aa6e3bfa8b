"""Windows: sizes, strides, edges, ties, NaN, gradients, adaptive ones of uneven sizes."""

from __future__ import annotations

import pytest
import torch
from lowered import check
from test_concat_pad import gradient

F = torch.nn.functional
WINDOWS = [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2), (6, 3, 2, 1)]


def sample() -> torch.Tensor:
    """Small integers, so that there are ties."""
    return torch.randint(0, 6, (1, 2, 15, 17)).float()


@pytest.mark.quick(1)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_maxima(window: tuple[int, int, int, int]) -> None:
    check(lambda x: F.max_pool2d(x, *window, return_indices=True), sample())
    check(lambda x: F.max_pool2d(x, *window, return_indices=True), torch.full((1, 1, 9, 9), -torch.inf))
    check(lambda x: F.max_pool2d(x, *window), sample().to(torch.int64))
    holes = sample()
    holes[0, 0, 3:7, 4:8] = torch.nan
    check(lambda x: F.max_pool2d(x, *window, return_indices=True), holes)


@pytest.mark.quick(1)
@pytest.mark.parametrize("window", [WINDOWS[0], WINDOWS[1]], ids=str)
def test_gradients(window: tuple[int, int, int, int]) -> None:
    check(gradient(lambda x: F.max_pool2d(x, *window)), sample())
    check(gradient(lambda x: F.avg_pool2d(x, *window[:3], ceil_mode=True, count_include_pad=False)), sample())


@pytest.mark.slow
def test_gradients_of_maxima_with_channels_last_are_added_by_the_library() -> None:
    x = sample().expand(2, -1, -1, -1).contiguous(memory_format=torch.channels_last)
    for window, calls in (((5, 1, 2), 1), ((3, 2, 1), 1), ((2, 2, 0), 0)):
        record = check(gradient(lambda x, w=window: F.max_pool2d(x, *w)), x)
        assert (
            record.graphs[-1].nodes
            and [type(n).__name__ for n in record.graphs[-1].nodes].count("ExternCall") == calls
        )


def test_gradients_of_maxima_that_are_scattered_lie_as_in_eager_mode() -> None:
    x = torch.randn(2, 3, 6, 5).contiguous(memory_format=torch.channels_last)

    def pooled(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 3, 1, 1, 2).sum() + F.adaptive_max_pool2d(x, (4, 3)).sum()

    check(gradient(pooled), x)
    check(gradient(pooled), x[:0].contiguous())
    check(
        gradient(lambda x: F.max_pool3d(x, 3, 1, 1, 2)),
        x[:, :, None].expand(-1, -1, 4, -1, -1).contiguous(memory_format=torch.channels_last_3d),
    )


AVERAGES = {
    "whole windows, padded": (3, 2, 1, False, True),
    "whole windows": (2, 2, 0, False, False),
    "gaps": (2, 3, 0, False, True),
    "the last is cut": (3, 2, 1, True, True),
    "cut, without padding": (4, 3, 2, True, False),
    "another divisor": (3, 2, 1, True, True, 5),
    "strips": ((1, 3), (1, 2), (0, 1)),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("name", AVERAGES)
def test_gradients_of_averages(name: str, numerics: str) -> None:
    args = AVERAGES[name]
    for side in (15, 16):
        x = torch.randn(2, 3, side, side + 1)
        check(gradient(lambda x, args=args: F.avg_pool2d(x, *args)), x, numerics=numerics)


def test_a_gradient_of_equal_averages_divides_once() -> None:
    record = check(gradient(lambda x: F.avg_pool2d(x, 3, 2, 1)), torch.randn(2, 3, 15, 15))
    assert str(record.graphs[-1]).count("div") <= 2


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_averages(dynamic: bool) -> None:
    x = torch.randn(1, 2, 15, 17)
    for kernel, stride, padding, ceil, include in (
        (3, 2, 1, True, False),
        (2, 2, 0, False, True),
        (6, 3, 2, True, True),
    ):
        check(
            lambda x, args=(kernel, stride, padding, ceil, include): F.avg_pool2d(x, *args),
            x,
            dynamic=dynamic,
        )


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [(3, 4), (1, 1), (5, 17)], ids=str)
def test_adaptive(size: tuple[int, int]) -> None:
    x = torch.randn(1, 2, 15, 17)
    check(lambda x: F.adaptive_avg_pool2d(x, size) * 2, x)
    holes = torch.where(torch.rand(x.shape) < 0.1, torch.nan, x)
    for values in (x, holes):
        check(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), values)
    check(gradient(lambda x: F.adaptive_avg_pool2d(x, size)), x)
    check(gradient(lambda x: F.adaptive_max_pool2d(x, size)), x)


def test_ranks_types_layouts() -> None:
    x = torch.randn(2, 3, 9, 10)
    check(lambda x: F.avg_pool1d(x[0], 3, 2, 1), x)
    check(lambda x: F.max_pool1d(x[0], 3, 2, 1), x)
    check(lambda x: F.max_pool3d(x, 3, 2, 1) + F.avg_pool3d(x, 3, 2, 1), x)
    check(
        lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1), x.to(memory_format=torch.channels_last)
    )
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x.bfloat16())
    check(lambda x: F.max_pool2d(x, 3, 2, 1), x, dynamic=True)
