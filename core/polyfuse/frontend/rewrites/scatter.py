"""Values that are put or added into a tensor of one number, which then need not be made: sums of scattered
values and something else, and slices of a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch.fx import Node

from polyfuse.frontend.rewrites.tools import (
    UNIFORM_VIEWS,
    Rewriting,
    aten,
    is_contiguous,
    same_kind,
    same_layout,
    tensor_value,
    uniform_value,
)

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


def pad_slices(state: Rewriting) -> int:
    """A slice of a constant that is overwritten is a margin around what is written.

    Complex tensors are sliced so in the gradients of Fourier transforms: their operators are calls, which
    would make the constant, copy the slice, and copy both into the result.
    """

    def padded(node: Node) -> Callable[[], Node] | None:
        if node.target is not aten.slice_scatter.default:
            return None
        given: list[Any] = list(node.args)
        base, source, dim, start, end, step = given + [0, None, None, 1][len(given) - 2 :]
        if isinstance(source, Node) and source.target is aten.copy.default:
            source = _copied(source)
        number, margins = _number(base), _margins(base, source, dim, start, end, step)
        if number is None or margins is None:
            return None
        return partial(state.call_before, node, aten.constant_pad_nd.default, (source, margins, number))

    return state.replace_each(padded)


def _copied(copy: Node) -> Any:
    """What a copy copies, if nothing is broadcast or converted."""
    source = copy.args[1]
    mine, theirs = tensor_value(copy), tensor_value(source)
    return source if mine is not None and theirs is not None and same_kind(mine, theirs) else copy


def _number(node: Any) -> int | float | None:
    if not isinstance(node, Node) or node.target is not aten.full.default:
        return None
    number = node.args[1]
    return number if type(number) in (int, float) else None


def _margins(base: Any, source: Any, dim: int, start: Any, end: Any, step: Any) -> list[int] | None:
    """What `source` is padded with at the end and the beginning of each dimension, the last first; None if
    that is not known, or lies otherwise in memory than the whole.
    """
    whole, part = tensor_value(base), tensor_value(source)
    if whole is None or part is None or step != 1 or whole.dtype != part.dtype:
        return None
    # what may be an image keeps the order of its dimensions in memory
    if not is_contiguous(whole) or (whole.dim() in (4, 5) and not is_contiguous(part)):
        return None
    dim, size, length = dim % whole.dim(), whole.shape[dim], part.shape[dim]
    if not all(n is None or isinstance(n, int) for n in (start, end, size, length)):
        return None
    first, stop, _ = slice(start, end).indices(size)
    if stop - first != length:
        return None
    return [0, 0] * (whole.dim() - 1 - dim) + [first, size - stop]


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
