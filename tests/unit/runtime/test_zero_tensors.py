"""Forward-mode differentiation makes zeros that have no memory; kernels read zeros that have some."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def _compiled(fn: Callable[..., object]) -> Callable[..., object]:
    torch.compiler.reset()
    return torch.compile(fn, backend="polyfuse", fullgraph=True)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_tangents_that_are_zero(dtype: torch.dtype) -> None:
    x, tangent, y, z = (torch.randn(5, dtype=dtype) for _ in range(4))

    def derivative(x: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.jvp(lambda a: torch.addcmul(a, y, z, value=0.5), (x,), (tangent,))

    torch.testing.assert_close(_compiled(derivative)(x, tangent), derivative(x, tangent))


@pytest.mark.usefixtures("interpreted_kernels")
def test_inputs_that_are_zero() -> None:
    zeros = torch.ops.aten._efficientzerotensor.default((3, 4)).t()
    run = _compiled(lambda x, y: (x * 2 + y).sum(0))
    for x in (torch.randn(4, 3), zeros, torch.randn(4, 3), zeros):
        y = torch.randn(4, 3)
        torch.testing.assert_close(run(x, y), (x * 2 + y).sum(0))
