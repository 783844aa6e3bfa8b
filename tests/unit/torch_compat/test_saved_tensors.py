"""Hooks of saved tensors: what they return lies otherwise than what a compiled forward saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

Hook = Callable[[torch.Tensor], torch.Tensor]


def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ weight).softmax(-1)


def gradients(run: Callable[..., Any], hook: Hook) -> Any:
    torch.manual_seed(0)
    args = [torch.randn(size).requires_grad_() for size in ((6, 4), (4, 5))]
    with saved_tensors_hooks(torch.Tensor.detach, hook):
        result = run(*args)
    return torch.autograd.grad(result.square().sum(), args)


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT


def spread(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros([2 * n for n in x.shape])[tuple(slice(None, None, 2) for _ in x.shape)].copy_(x)


def negated(x: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(-x)


def beside(x: torch.Tensor) -> torch.Tensor:
    """At an address that kernels do not expect."""
    return x.new_zeros(x.numel() + 1)[1:].as_strided(x.shape, x.stride(), 1).copy_(x)


def wider(x: torch.Tensor) -> torch.Tensor:
    return x.double()


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
def test_what_hooks_return_is_read_as_what_was_saved(first: bool) -> None:
    """In the first backward of a graph, which looks at its inputs, and in others."""
    compiled = torch.compile(function, backend="polyfuse", options={"backends": ["cpp"]})
    expected = gradients(function, torch.Tensor.detach)
    for hook in (transposed, spread, negated, beside, wider):
        if first:
            torch._dynamo.reset()
        for _ in range(2):
            torch.testing.assert_close(gradients(compiled, hook), expected)


def test_conjugated_parts_and_expanded_inputs() -> None:
    def turned(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(z * z.conj() * z).sum(-1) * x.sin()

    def conjugated(x: torch.Tensor) -> torch.Tensor:
        return x.conj().resolve_conj().conj() if x.is_complex() else x.contiguous()

    def found(run: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        z = torch.randn(4, 3, dtype=torch.complex64, requires_grad=True)
        x = torch.randn(3, requires_grad=True)
        with saved_tensors_hooks(torch.Tensor.clone, conjugated):
            result = run(z, x.expand(4, 3))
        return torch.autograd.grad(result.sum(), (z, x))

    compiled = torch.compile(turned, backend="polyfuse", options={"backends": ["cpp"]})
    for _ in range(2):
        torch.testing.assert_close(found(compiled), found(turned))


def test_another_size_is_refused() -> None:
    compiled = torch.compile(function, backend="polyfuse", options={"backends": ["cpp"]})
    gradients(compiled, torch.Tensor.detach)
    with pytest.raises(RuntimeError, match="a hook of saved tensors returned a tensor of size"):
        gradients(compiled, lambda x: x[:1])
