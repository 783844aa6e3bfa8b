"""Strides of plain layouts."""

from __future__ import annotations

import pytest
import torch

from polyfuse.symbolic import contiguous_strides, symbol


@pytest.mark.parametrize("size", [(), (1,), (2, 3, 4), (3, 1, 2), (0,), (2, 0, 3), (0, 5, 0), (4, 0)])
def test_contiguous_strides_are_those_of_torch(size):
    assert contiguous_strides(size) == torch.empty(size).stride()


def test_sizes_that_are_not_known():
    n = symbol("n")
    assert contiguous_strides((2, n, 3)) == (3 * n, 3, 1)
