"""Inputs that a forward and its backward write to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor


class Written(torch.autograd.Function):
    """Writes one number more to a tensor each time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counted: Tensor) -> Tensor:
        counted.add_(1)
        ctx.counted = counted
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.counted.add_(1)
        return gradient, None


class Read(torch.autograd.Function):
    """Reads what it overwrites, before and afterwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, whole: Tensor) -> Tensor:
        ctx.before = part.exp()
        part[:1].mul_(3)
        whole.mul_(2)
        ctx.part, ctx.whole = part, whole
        return x * part.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        factor = ctx.before * 2
        ctx.part[1:].add_(gradient.sum())
        ctx.whole.add_(factor)
        return gradient * factor, None, None


class Exchanged(torch.autograd.Function):
    """Computes each of two tensors from the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Tensor, whole: Tensor) -> Tensor:
        ctx.save_for_backward(part * 2 + x)
        whole.sub_(part)
        part.add_(whole)
        ctx.part, ctx.whole = part, whole
        return x * part.sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (saved,) = ctx.saved_tensors
        ctx.part.mul_(saved)
        ctx.whole.copy_(ctx.part + gradient)
        return gradient * saved, None, None


def test_a_backward_writes_what_its_forward_wrote() -> None:
    torch._dynamo.reset()
    step = torch.compile(lambda x, counted: Written.apply(x, counted), backend="polyfuse", fullgraph=True)
    x, counted = torch.ones(2, requires_grad=True), torch.zeros(2)
    for n in (2, 4):
        step(x, counted).sum().backward()
        assert counted.tolist() == [n, n]


@pytest.mark.quick(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [Read, Exchanged])
def test_a_backward_reads_the_old_content_and_writes_the_new(function: Any, dynamic: bool) -> None:
    def program(*given: Tensor) -> Tensor:
        result: Tensor = function.apply(*given)
        return result

    torch._dynamo.reset()
    step = torch.compile(program, backend="polyfuse", fullgraph=True, dynamic=dynamic)
    for n in (4, 6):
        found = []
        for run in (program, step):
            torch.manual_seed(n)
            x, part, whole = torch.randn(n, requires_grad=True), torch.randn(n), torch.randn(n)
            result = run(x, part, whole)
            after = (part.clone(), whole.clone())
            result.sum().backward()
            found.append((result.detach(), *after, part, whole, x.grad))
        torch.testing.assert_close(*found)


class Counted(torch.autograd.Function):
    """Changes a part of a tensor, which its backward reads as it was left, and uses the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: Tensor) -> Tensor:
        counts[1:, ::2] += 1
        ctx.save_for_backward(x)
        return x * 2 + counts.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * x.cos(), None


@pytest.mark.parametrize("inner", [False, True])
def test_what_a_part_was_between_two_writes_is_saved(inner: bool) -> None:
    """The first write is done in the input itself only if nobody needs what that holds then."""

    def function(x: Tensor, counts: Tensor) -> Tensor:
        return Counted.apply(Counted.apply(x, counts), counts)

    run = torch.compile(function, backend="polyfuse", options={"strict": True})
    start, counts = torch.randn(4, 4), torch.randn(6, 4)
    results = []
    for compute in (run, function):
        x, base = start.clone().requires_grad_(), counts.clone()
        value = compute(x, base[1:5] if inner else base[:4].contiguous())
        value.sum().backward()
        results.append((value, x.grad, base))
    torch.testing.assert_close(*results)
