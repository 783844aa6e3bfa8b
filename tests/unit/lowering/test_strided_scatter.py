"""Elements written at strides of a tensor's memory."""

from __future__ import annotations

import pytest
import torch
from lowered import check
from torch.nn import functional as F


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "base, size, stride, offset",
    [
        ((6, 4), (6, 4), (4, 1), 0),
        ((24,), (2, 3, 4), (12, 4, 1), 0),
        ((6, 4), (2, 3), (9, 2), 3),
        ((6, 4), (4, 5), (1, 4), 2),
        ((6, 4), (1, 1, 3), (7, 0, 8), None),
        ((6, 4), (), (), 5),
    ],
)
def test_strides_that_do_not_overlap(
    base: tuple[int, ...], size: tuple[int, ...], stride: tuple[int, ...], offset: int | None
) -> None:
    x, y = torch.randn(base), torch.randn(size)
    check(lambda x, y: torch.as_strided_scatter(x * 2, y + 1, size, stride, offset), x, y)


def test_sizes_that_vary() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.as_strided_scatter(x, y, (x.shape[0], 2), (4, 1), 1)

    check(fn, torch.randn(6, 4), torch.randn(6, 2), dynamic=True)


def test_other_layouts_and_types() -> None:
    x, y = torch.arange(24).view(4, 6).t(), -torch.arange(6).view(3, 2)
    check(lambda x, y: torch.as_strided_scatter(x, y, (3, 2), (5, 2), 1), x, y)


@pytest.mark.parametrize("size, stride", [((3, 3), (1, 1)), ((2, 4), (3, 1))])
def test_strides_that_overlap_stay_with_eager_mode(size: tuple[int, ...], stride: tuple[int, ...]) -> None:
    x, y = torch.zeros(12), torch.ones(size)
    record = check(lambda x, y: torch.as_strided_scatter(x, y, size, stride, 1), x, y, native=False)
    assert [item.op for item in record.report.fallbacks] == ["aten.as_strided_scatter.default"]


def test_gradients_of_global_average_pooling_of_channels_last() -> None:
    x = torch.randn(2, 5, 4, 3).contiguous(memory_format=torch.channels_last).requires_grad_()

    def fn(x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(F.adaptive_avg_pool2d(x, 1).square().sum(), x)
        return found

    check(fn, x)
