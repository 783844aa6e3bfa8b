"""Strides of what is written in place, preserved while AOTAutograd traces.

AOTAutograd replaces `x.tanh_()` by `x = x.tanh()`, and a new tensor has no gaps between its rows, nor always
the order of dimensions of `x`. Views of `x` that are taken later get the strides of that new tensor, and
`x.flatten(0, 1)` may be a view where eager mode copies, or copy where it is a view. `aten.copy` alone keeps
the strides of what it overwrites. Here an operator that writes to a tensor with gaps writes to a copy of it,
which is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_map, tree_map_only


def has_own_strides(tensor: Any, *, dense: bool = False) -> bool:
    """Whether a new tensor of this size might have other strides: whether the tensor is not known to be
    contiguous, or, if `dense`, to be so with its dimensions in another order. No guard is added.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        return False
    left = [
        (size, stride)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if not statically_known_true(size == 1)
    ]
    expected: Any = 1
    while left:
        inner = [i for i, (_, stride) in enumerate(left) if statically_known_true(stride == expected)]
        if not inner or not (dense or inner[-1] == len(left) - 1):
            return True
        expected = expected * left.pop(inner[-1])[0]
    return False


class _KeepsStrides(TorchDispatchMode):
    """While it is on, what operators write in place keeps its strides through functionalization."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is torch.ops.aten.bernoulli_.float and has_own_strides(args[0]):
            rows = _as_in_memory(args[0])
            if rows is not args[0]:
                with self:
                    func(rows, *args[1:], **named)
                return args[0]
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        dense = torch.Tag.pointwise in func.tags

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            if not has_own_strides(tensor, dense=dense):
                return tensor
            copies.append((tensor, tensor.clone()))
            return copies[-1][1]

        given = list(args)
        if _writes(func):
            for i, argument in enumerate(func._schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                if i < len(given):
                    given[i] = tree_map_only(torch.Tensor, copied, given[i])
                elif argument.name in named:
                    named[argument.name] = tree_map_only(torch.Tensor, copied, named[argument.name])
        result = func(*given, **named)
        for original, copy in copies:
            original.copy_(copy)
        back = {id(copy): original for original, copy in copies}
        return tree_map(lambda value: back.get(id(value), value), result) if copies else result


def _as_in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, its dimensions in the order of its memory: so eager mode draws, and what AOTAutograd has
    instead draws row by row."""
    order = memory_order(tensor)
    return tensor if order == list(range(tensor.dim())) else tensor.permute(order)


def memory_order(tensor: torch.Tensor) -> list[int]:
    """The dimensions of a tensor, those that are furthest apart in memory first."""
    return sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))


def _writes(func: Any) -> bool:
    """Whether an operator of torch's writes elements in place, and is not `aten.copy_` itself. Those of other
    libraries become calls that get copies of whole bases, strides included.
    """
    return (
        isinstance(func, torch._ops.OpOverload)
        and func.namespace == "aten"
        and func._schema.is_mutable
        and torch.Tag.inplace_view not in func.tags
        and func.overloadpacket not in (torch.ops.aten.copy_, torch.ops.aten.set_, torch.ops.aten.resize_)
    )


class _StridedCall:
    """A call of a captured graph in which what is written in place keeps its strides."""

    def __init__(self, target: Callable[..., Any] | str) -> None:
        self.target = target
        self.__name__ = target if isinstance(target, str) else getattr(target, "__name__", "call")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _KeepsStrides():
            if isinstance(self.target, str):
                return getattr(args[0], self.target)(*args[1:], **kwargs)
            return self.target(*args, **kwargs)


@contextmanager
def preserved_strides(gm: Any) -> Iterator[None]:
    """While it is on, each call of a captured graph that may write to a tensor with strides of its own keeps
    them. Afterwards the graph is as it was: torch may look at it again.
    """
    changed: list[tuple[Node, str, Any]] = []
    for node in gm.graph.nodes if isinstance(gm, GraphModule) else ():
        if _may_write(node) and tree_any(
            lambda value: isinstance(value, Node) and has_own_strides(value.meta.get("example_value")),
            (node.args, node.kwargs),
        ):
            changed.append((node, node.op, node.target))
            node.op, node.target = "call_function", _StridedCall(node.target)
    try:
        yield
    finally:
        for node, op, target in changed:
            node.op, node.target = op, target


def _may_write(node: Node) -> bool:
    """Whether a call of a captured graph may write in place: no operator of higher order, and no property."""
    if node.op == "call_method":
        return True
    return node.op == "call_function" and not isinstance(node.target, torch._ops.HigherOrderOperator)
