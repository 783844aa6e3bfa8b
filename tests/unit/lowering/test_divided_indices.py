"""Values of which a view divides indices: stored, or computed once for each row that has one of them."""

from __future__ import annotations

import pytest
import torch
from lowered import check
from torch.nn import functional as F

from polyfuse.plugin import TargetInfo

STRIPS = TargetInfo(column_bytes=1 << 16)


def scaled(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """One factor for each group and channel, made of both."""
    factors = (g.sigmoid()[:, :, None] + torch.arange(4.0)).flatten(1)
    return x * factors[:, :, None, None]


def both(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The same factors also beside something that they vary along."""
    factors = (g.sigmoid()[:, :, None] + torch.arange(4.0)).flatten(1)
    return x * factors[:, :, None, None] + factors.sum()


@pytest.mark.quick(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("size", "channels_last", "pointwise"),
    [
        ((2, 12, 8, 8), False, 1),  # a row for each factor
        ((2, 12, 8, 8), True, 2),  # each factor in each row
        ((2, 12, 3, 5), False, 2),  # rows too short to divide an index for
    ],
)
def test_factors_of_channels(
    size: tuple[int, ...], channels_last: bool, pointwise: int, dynamic: bool
) -> None:
    x = torch.randn(size)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    record = check(scaled, x, torch.randn(2, 3), dynamic=dynamic, target=STRIPS)
    assert record.kinds().count("Pointwise") == pointwise


def test_where_strips_of_columns_do_not_matter() -> None:
    record = check(scaled, torch.randn(2, 12, 8, 8), torch.randn(2, 3), target=TargetInfo())
    assert record.kinds().count("Pointwise") == 2


def test_several_readers() -> None:
    record = check(both, torch.randn(2, 12, 8, 8), torch.randn(2, 3), target=STRIPS)
    assert record.kinds().count("Pointwise") == 2


@pytest.mark.quick(2)
@pytest.mark.parametrize("groups", [1, 3, 12])
def test_group_norm_is_a_reduction_and_its_result(groups: int) -> None:
    x, w, b = torch.randn(2, 12, 8, 9), torch.randn(12), torch.randn(12)
    record = check(lambda x, w, b: F.group_norm(x, groups, w, b), x, w, b, target=STRIPS)
    assert record.kinds().count("Pointwise") == 1
