"""Small functions that a sweep once found wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from models import checks


def block_diagonal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A part of width one beside zeros: one element read for some lanes only."""
    left = torch.cat([a, torch.zeros(5, 5)], 1)
    return torch.cat([left, torch.cat([b, torch.zeros(5, 4)], 1)])


def diagonal_scatter(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diagonal_scatter(b @ b.t(), a[:4, 0], offset=-1)


@pytest.mark.parametrize("function", [block_diagonal, diagonal_scatter])
def test_found_by_a_sweep(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    arguments = torch.randn(5, 1), torch.randn(5, 2)
    compiled = checks.compile_function(function, dynamic=False)
    checks.assert_close([compiled(*arguments)], [function(*arguments)], "output")
