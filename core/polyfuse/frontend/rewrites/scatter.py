"""Sums of scattered values and something else: scattered into that, so that no tensor of zeros is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from torch.fx import Node

from polyfuse.frontend.rewrites.tools import (
    UNIFORM_VIEWS,
    Rewriting,
    aten,
    same_layout,
    tensor_value,
    uniform_value,
)

__all__ = ["scatter_into_sums"]

_ACCUMULATING: Final = (
    aten.index_put.default,
    aten._unsafe_index_put.default,
    aten.scatter_add.default,
)

_MATMULS: Final = (aten.mm.default, aten.bmm.default)


def scatter_into_sums(state: Rewriting) -> int:
    """`x + zeros.index_put(i, v, accumulate=True)` is `x.index_put(i, v, accumulate=True)`.

    The gradients of an embedding that is used twice, or that is the matrix of the last layer too, are such
    sums: a table each. In floating point the order of additions changes, which `numerics="eager"` excludes,
    and a negative zero would stay one, so that `x` is a matmul or such a sum itself.
    """
    if state.stage == "joint":
        return 0

    def merged(node: Node) -> Callable[[], Node] | None:
        if node.target is not aten.add.Tensor or node.kwargs.get("alpha", 1) != 1:
            return None
        value = tensor_value(node)
        if value is None or (state.settings.numerics == "eager" and value.is_floating_point()):
            return None
        for scattered, other in (node.args[1::-1], node.args[:2]):
            if not isinstance(scattered, Node) or not isinstance(other, Node) or scattered is other:
                continue
            if _is_sum_of_scattered(scattered) and _fits(scattered, other, node):
                target, args = scattered.target, (other, *scattered.args[1:])
                return partial(state.call_before, node, target, args, dict(scattered.kwargs))
        return None

    return state.replace_each(merged)


def _is_sum_of_scattered(node: Node) -> bool:
    """Whether a call adds values to zeros at indices given by data, for one reader."""
    if node.op != "call_function" or node.target not in _ACCUMULATING or len(node.users) != 1:
        return False
    if node.target is not aten.scatter_add.default and not (len(node.args) > 3 and node.args[3] is True):
        return False
    return uniform_value(node.args[0]) == 0


def _fits(scattered: Node, other: Node, node: Node) -> bool:
    """Whether nothing is broadcast or converted, and the sum is laid out like what is scattered into."""
    mine, theirs, both = tensor_value(scattered), tensor_value(other), tensor_value(node)
    return (
        mine is not None
        and theirs is not None
        and both is not None
        and mine.dtype == both.dtype
        and same_layout(theirs, both)
        and (not both.is_floating_point() or _starts_from_zero(other))
    )


def _starts_from_zero(node: Node) -> bool:
    """Whether the elements of a tensor are sums that begin with a positive zero, so that adding another
    changes none."""
    if node.op != "call_function":
        return False
    if node.target in _ACCUMULATING:
        base = node.args[0]
        return uniform_value(base) == 0 or (isinstance(base, Node) and _starts_from_zero(base))
    if node.target in UNIFORM_VIEWS:
        return isinstance(node.args[0], Node) and _starts_from_zero(node.args[0])
    return node.target in _MATMULS
