"""What the registry says of one module or small block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

Made = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Block:
    """A function or module to compile, and its arguments.

    `make` builds both, in f32; it is called once for each measurement. `trains` says whether there are
    gradients to take, `low` whether eager mode computes it in dtypes of 16 bits, too.
    """

    name: str
    group: str
    make: Callable[[], Made]
    trains: bool = True
    low: bool = True


def layer(
    group: str, name: str, build: Callable[[], nn.Module], *shape: int, last: bool = False, low: bool = True
) -> Block:
    """A module of one tensor; `last`: its channels lie last in memory."""

    def make() -> Made:
        x = torch.randn(shape)
        if last:
            x = x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
        return build(), (x,)

    return Block(name, group, make, low=low)


def function(
    group: str, name: str, call: Callable[..., Any], *shapes: tuple[int, ...], low: bool = True
) -> Block:
    """A function of tensors of normal numbers."""
    return Block(name, group, lambda: (call, tuple(torch.randn(shape) for shape in shapes)), low=low)


def given(
    group: str,
    name: str,
    call: Callable[..., Any],
    arguments: Callable[[], tuple[Any, ...]],
    trains: bool = True,
    low: bool = True,
) -> Block:
    """A function or module whose arguments are more than normal numbers."""
    return Block(name, group, lambda: (call, arguments()), trains=trains, low=low)


def converted(made: Made, dtype: torch.dtype) -> Made:
    """The same in another floating-point dtype; layouts stay, integers and complex numbers too."""
    call, arguments = made

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf

    return (
        call.to(dtype) if isinstance(call, nn.Module) else call,
        pytree.tree_map(cast, arguments),
    )


def step(call: Callable[..., Any], made: Made) -> Callable[[], Any]:
    """A call without arguments that answers what `call` does, with the gradients of arguments and parameters.

    What flows back is the same for each compiler: random numbers of each floating-point result.
    """
    torch.manual_seed(1)
    original, arguments = made
    wanted = [leaf.requires_grad_() for leaf in _floating(arguments)]
    if isinstance(original, nn.Module):
        wanted += original.parameters()
    with torch.no_grad():
        seeds = [torch.randn_like(leaf) for leaf in _floating(original(*arguments))]

    def run() -> Any:
        result = call(*arguments)
        return torch.autograd.grad(list(_floating(result)), wanted, seeds, allow_unused=True)

    return run


def _floating(tree: Any) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            yield leaf
