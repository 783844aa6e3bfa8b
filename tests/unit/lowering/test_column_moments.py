"""Moments of groups of columns: from those of each column, where loops over these run along memory."""

from __future__ import annotations

import pytest
import torch
from lowered import check, compiled

from polyfuse.plugin import TargetInfo

COLUMNS = TargetInfo(column_bytes=1 << 16)


def grouped(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.group_norm(x, 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_groups_of_channels_that_are_last(dynamic: bool) -> None:
    x = torch.randn(2, 6, 9, 11).contiguous(memory_format=torch.channels_last)
    rows, single = x.contiguous(), x[:, :2].contiguous(memory_format=torch.channels_last)
    made = [
        check(grouped, y, dynamic=dynamic, target=COLUMNS).kinds().count("Reduction")
        for y in (x, rows, single)
    ]
    # rows that are contiguous, and groups of one channel, are reduced at once
    assert made == ([3, 1, 1] if dynamic else [4, 2, 2])


def test_a_large_mean_cancels_out() -> None:
    """Where eager mode's sum of squares has lost four digits."""
    x = (torch.randn(2, 6, 9, 11) + 100).contiguous(memory_format=torch.channels_last)
    fn, _ = compiled(grouped, target=COLUMNS)
    torch.testing.assert_close(fn(x), grouped(x.double()).float(), rtol=1e-4, atol=1e-4)


def test_variances_of_blocks() -> None:
    x = torch.randn(70, 4, 5) * torch.arange(1, 21).view(4, 5)
    for correction in (0, 1):
        check(lambda x, c=correction: x.var((0, 2), correction=c), x, target=COLUMNS)
    check(lambda x: torch.var_mean(x.bfloat16(), (0, 2), keepdim=True), x, target=COLUMNS)
    record = check(lambda x: x.std((0, 2)), x, target=COLUMNS)
    assert record.kinds().count("Reduction") == 4
