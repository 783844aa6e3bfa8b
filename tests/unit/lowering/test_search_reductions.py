"""Searching sorted numbers, and images in blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowered import check
from test_concat_pad import gradient

F = torch.nn.functional


@pytest.mark.quick(2)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_search(right: bool, count: int) -> None:
    x = torch.randn(3, 5)
    x[0, 0] = torch.nan
    x[1, 1] = 0.0
    line = torch.linspace(-1, 1, count).clone()
    rows = torch.randn(3, count).sort()[0]
    check(lambda x, b: torch.bucketize(x, b, right=right) + 1, x, line)
    check(lambda x, b: torch.searchsorted(b, x, right=right, out_int32=True), x, rows)
    check(lambda x, b: torch.bucketize(x, b, right=right), torch.arange(6), torch.tensor([1, 3, 3, 5]))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "block",
    [
        pytest.param((3, 1, 1, 1), marks=pytest.mark.slow),
        (2, 1, 0, 2),
        pytest.param((3, 2, 1, 1), marks=pytest.mark.slow),
        ((2, 3), 1, (0, 1), (2, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_blocks(block: tuple[Any, ...], dynamic: bool) -> None:
    image = torch.randn(2, 3, 8, 9)
    columns = F.unfold(image, *block)
    check(lambda c: F.fold(c, (8, 9), *block) + 1, columns, dynamic=dynamic)
    check(lambda x: F.unfold(x, *block) + 1, image, dynamic=dynamic)
    if not dynamic:
        check(gradient(lambda x: F.unfold(x, *block)), image)
