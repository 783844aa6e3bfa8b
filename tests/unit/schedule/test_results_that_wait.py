"""Results of calls are used when they are there: they do not pile up behind work that needs none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from memory_peaks import peak

SIZE = 512
"""Rows and columns: a matrix has a megabyte."""

MATRIX = 4 * SIZE * SIZE


def compiled(function: Callable[..., Any], path: Any) -> Callable[..., Any]:
    options = {"backends": ["cpp"], "strict": True, "cache_dir": str(path)}
    return torch.compile(function, backend="polyfuse", options=options, dynamic=False)


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("steps", [4, 9])
def test_the_steps_of_a_loop_come_one_after_the_other(tmp_path: Any, steps: int) -> None:
    def function(x: torch.Tensor, u: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros_like(x[0]), []
        for step in range(steps):
            state = torch.tanh(x[step] @ u + state @ w)
            states.append(state)
        return torch.cat(states)

    x, u, w = torch.randn(steps, SIZE, SIZE), torch.randn(SIZE, SIZE) / 30, torch.randn(SIZE, SIZE) / 30
    found = compiled(function, tmp_path)
    torch.testing.assert_close(found(x, u, w), function(x, u, w), rtol=1e-3, atol=1e-4)
    # the result, two products, the state before and after, and what a library takes for itself
    assert peak(lambda: found(x, u, w)) <= (steps + 6) * MATRIX


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("steps", [3, 20])
def test_gradients_of_a_weight_are_added_up_as_they_come(tmp_path: Any, steps: int) -> None:
    x, w = torch.randn(8, SIZE), (torch.randn(SIZE, SIZE) / 30).requires_grad_()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(steps):
            x = torch.tanh(x @ w)
        return x

    def step(called: Callable[..., torch.Tensor]) -> torch.Tensor:
        w.grad = None
        called(x, w).sum().backward()
        assert w.grad is not None
        return w.grad.clone()

    found = compiled(function, tmp_path)
    torch.testing.assert_close(step(found), step(function), rtol=1e-3, atol=1e-3)
    assert peak(lambda: step(found)) <= 7 * MATRIX
