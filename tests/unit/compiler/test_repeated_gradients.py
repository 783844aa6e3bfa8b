"""Regions of one graph are one node to autograd: what autograd promises of a node holds of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("interpreted_kernels")

OPTIONS = {"repeated_layers": "on", "strict": True}


def layer(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    first, second = (F.layer_norm(x, (8,)) @ weight).chunk(2, -1)
    return x + F.gelu(first) * second.sigmoid() * scale


def stack(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Layers that all read one value, a result of the middle, and one that has no gradient."""
    scale, middle = x.cos(), x
    for position, weight in enumerate(weights):
        x = layer(x, weight, scale)
        if position == len(weights) // 2:
            middle = x
    return x, middle.sin()


def inputs(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(4, 8), *[(8, 16)] * 8]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).div(3).requires_grad_()
        for shape in shapes
    ]


def compiled(**more: Any) -> Callable[..., Any]:
    return torch.compile(stack, backend="polyfuse", options={**OPTIONS, **more})


def gradients(results: Sequence[torch.Tensor], args: Sequence[torch.Tensor], **kwargs: Any) -> Any:
    return torch.autograd.grad([r.square().sum() for r in results], args, allow_unused=True, **kwargs)


@pytest.fixture
def saved_buffers() -> Iterator[None]:
    """Backwards that leave what is saved as it is, as graphs need that are used again."""
    with functorch_config.patch({"donated_buffer": False}):
        yield


def test_autograd_sees_one_node() -> None:
    args = inputs()
    x, other = compiled()(*args)
    assert x.grad_fn is other.grad_fn
    leaves = {node.variable for node, _ in x.grad_fn.next_functions if hasattr(node, "variable")}
    assert leaves == set(args)


@pytest.mark.quick(1)
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_some_results_have_no_part_in_the_loss(which: Sequence[int]) -> None:
    args = inputs(1)
    run = compiled()
    for seed in (1, 2):
        args = inputs(seed)
        made, expected = run(*args), stack(*args)
        torch.testing.assert_close(made, expected)
        given = gradients([made[n] for n in which], args)
        for mine, theirs in zip(given, gradients([expected[n] for n in which], args), strict=True):
            # a compiled region has zeros where autograd knows that there is nothing
            blank = torch.zeros_like(mine if mine is not None else args[0])
            torch.testing.assert_close(*(blank if g is None else g for g in (mine, theirs)))


def test_a_graph_that_is_used_twice(saved_buffers: None) -> None:
    args = inputs(2)
    made = compiled(graph_cache=False)(*args)
    expected = gradients(stack(*args), args)
    torch.testing.assert_close(gradients(made, args, retain_graph=True), expected)
    torch.testing.assert_close(gradients(made, args, retain_graph=True), expected)
    torch.testing.assert_close(gradients(made, args), expected)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(made, args)


def test_gradients_of_gradients_are_refused(saved_buffers: None) -> None:
    args = inputs(3)
    run = compiled(graph_cache=False)
    gradients(run(*args), args)
    first = gradients(run(*args), args, create_graph=True)
    torch.testing.assert_close(first, gradients(stack(*args), args))
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(sum(g.sum() for g in first), args)


def test_hooks_see_what_is_saved() -> None:
    args = inputs(4)
    run = compiled()
    gradients(run(*args), args)
    packed: list[torch.Tensor] = []

    def pack(value: torch.Tensor) -> torch.Tensor:
        packed.append(value)
        return value.as_strided(value.size(), value.stride()).detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        made = run(*args)
    assert len(packed) > 8
    torch.testing.assert_close(gradients(made, args), gradients(stack(*args), args))


def test_what_is_saved_may_not_be_written() -> None:
    args = inputs(5)
    run = compiled()
    gradients(run(*args), args)
    made = run(*args)
    with torch.no_grad():
        args[0].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(made, args)


def test_autocast_around_the_call() -> None:
    args = inputs(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = compiled()
        made = [run(*args) for _ in range(2)][1]
        expected = stack(*args)
    torch.testing.assert_close(made, expected, atol=0.05, rtol=0.05)
    torch.testing.assert_close(gradients(made, args), gradients(expected, args), atol=0.3, rtol=0.1)


def test_steps_with_gradients_that_add_up() -> None:
    args = inputs(7)
    theirs = [arg.detach().clone().requires_grad_() for arg in args]
    run = compiled()
    for _ in range(3):
        for function, leaves in ((run, args), (stack, theirs)):
            x, middle = function(*leaves)
            (x.square().mean() + middle.sum()).backward()
    torch.testing.assert_close([a.grad for a in args], [t.grad for t in theirs])


@pytest.mark.slow
def test_compiled_autograd() -> None:
    from torch._dynamo import compiled_autograd

    args = inputs(8)
    x, middle = compiled()(*args)
    with compiled_autograd._enable(torch.compile(backend="polyfuse")):
        (x.square().sum() + middle.square().sum()).backward()
    torch.testing.assert_close(tuple(a.grad for a in args), gradients(stack(*args), args))
