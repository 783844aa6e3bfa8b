"""Sums of comparisons in 8 and 16 bits, one by one at the ends of rows: GCC 12 made wrong vectors of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models import checks


def generation(cells: Tensor) -> Tensor:
    """The next generation of the Game of Life on a torus."""
    near = [cells.roll(i, 0).roll(j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    count = sum(near[1:], near[0]) - cells
    return ((count == 3) | ((cells == 1) & (count == 2))).to(cells.dtype)


def two_generations(cells: Tensor) -> Tensor:
    return generation(generation(cells))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_two_generations(dtype: torch.dtype) -> None:
    compiled = checks.compile_function(two_generations, dynamic=False, options={"backends": ["cpp"]})
    for seed in range(5):
        cells = torch.randint(0, 2, (12, 12), generator=torch.Generator().manual_seed(seed)).to(dtype)
        assert torch.equal(compiled(cells), two_generations(cells))
