"""Operators that modules call with other arguments, or of whose results they drop some, called directly."""

from __future__ import annotations

import pytest
import torch


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="polyfuse")


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_statistics_of_a_layer_norm(dtype):
    """Those of 16-bit rows beside weights of f32 are not rounded."""
    given = []
    for kind in dict.fromkeys((dtype, torch.float32)):
        for bias in (torch.randn(33).to(kind), None):
            given.append(((torch.randn(4, 33) + 3).to(dtype), torch.randn(33).to(kind), bias))

    def f(given):
        return [torch.ops.aten.native_layer_norm(x, [33], w, b, 1e-5) for x, w, b in given]

    for mine, eager in zip(compiled(f)(given), f(given), strict=True):
        for found, wanted in zip(mine, eager, strict=True):
            torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("interpreted_kernels")
def test_its_gradients():
    x, w, b = torch.randn(4, 33).bfloat16(), torch.randn(33), torch.randn(33)

    def gradients(run):
        given = [t.clone().requires_grad_() for t in (x, w, b)]
        run(*given).float().sin().sum().backward()
        return [t.grad for t in given]

    def f(x, w, b):
        return torch.ops.aten.native_layer_norm(x, [33], w, b, 1e-5)[0]

    for found, wanted in zip(gradients(compiled(f)), gradients(f), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_greater_of_two_zeros(dtype):
    """In eager mode it is the second of bf16, and the first of others."""
    pairs = []
    for size in (4, 64, 1001):
        x = torch.tensor([0.0, -0.0]).repeat(size)[:size].to(dtype)
        y = torch.tensor([-0.0, 0.0, 0.0]).repeat(size)[:size].to(dtype)
        x[1], y[2] = torch.nan, torch.nan
        pairs.append((x, y))

    def both(pairs):
        return [op(x, y) for op in (torch.fmax, torch.fmin) for x, y in pairs]

    for found, wanted in zip(compiled(both)(pairs), both(pairs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        assert torch.equal(found.signbit(), wanted.signbit())
