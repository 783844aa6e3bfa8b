"""Gradients of slices with a step, and assignments to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

SLICES = [
    (None, None, 2),
    (1, None, 2),
    (0, 7, 3),
    (2, -1, 3),
    (-4, None, 2),
    (0, 3, 7),
    (6, 2, 2),
    (1, 30, 5),
]


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="polyfuse", fullgraph=True, **options)


def with_size(size: int, dim: int) -> torch.Tensor:
    return torch.randn(size if dim == 0 else 3, size if dim == 1 else 4)


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1, 5, 33])
def test_gradients_of_steps(size: int) -> None:
    dim = size % 4 // 2
    given = [with_size(size, dim) for _ in SLICES]
    for x in given:
        x.view(-1)[0] = float("nan")
        x.requires_grad_()
    parts = [(slice(None),) * dim + (slice(*bounds),) for bounds in SLICES]

    def squares(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x[part] * x[part] for x, part in zip(given, parts, strict=True)]

    eager = squares(given)
    grads = [torch.randn_like(y) for y in eager]
    wanted = torch.autograd.grad(eager, given, grads)
    actual = torch.autograd.grad(compiled(squares)(given), given, grads)
    for bounds, found, true in zip(SLICES, actual, wanted, strict=True):
        torch.testing.assert_close(found, true, equal_nan=True, msg=lambda text, b=bounds: f"{b}: {text}")


@pytest.mark.quick(1)
@pytest.mark.parametrize("size", [1, 8, 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_assignments_to_steps(dtype: torch.dtype, size: int) -> None:
    bounds = SLICES[::3]

    def assigned(*given: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for number, (x, y) in enumerate(zip(given[::2], given[1::2], strict=True)):
            found.append(x.clone())
            found[-1][:, slice(*bounds[number // 2])] = y
        return found

    x = with_size(size, 1).abs().to(dtype)
    columns, number = x.t().contiguous().t(), -0.0 if dtype.is_floating_point else 1
    targets = [(b.clone(), slice(*step)) for step in bounds for b in (x, columns)]
    given = [t for b, step in targets for t in (b, torch.full_like(b[:, step], number))]
    for actual, wanted in zip(compiled(assigned)(*given), assigned(*given), strict=True):
        assert torch.equal(actual, wanted) and actual.stride() == wanted.stride()
        if dtype.is_floating_point:
            assert torch.equal(actual.signbit(), wanted.signbit())


@pytest.mark.usefixtures("interpreted_kernels")
def test_a_size_that_varies() -> None:
    step = compiled(lambda x: x[:, 1::2] * 2, dynamic=True)
    for size in (7, 8, 31):
        x = torch.randn(3, size, requires_grad=True)
        (grad,) = torch.autograd.grad(step(x).sum(), x)
        wanted = torch.zeros(3, size)
        wanted[:, 1::2] = 2
        assert torch.equal(grad, wanted)
