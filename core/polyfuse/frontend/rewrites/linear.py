"""Linear layers whose rows are given as a batch of matrices.

torch decomposes a linear layer of a tensor that is not contiguous, such as `flatten(2).transpose(1, 2)` of an
image, into a batched matmul whose right operand is the weight, expanded, and `einsum` of rows and a weight
into one of a single batch. As a matmul of rows it is a layer like others: its weight may be packed, and its
bias and what follows are computed in its kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final, cast

from torch.fx import Node

from polyfuse.frontend.rewrites.tools import (
    Rewriting,
    aten,
    is_contiguous,
    same_number,
    same_sizes,
    tensor_value,
)

_VIEWS: Final = (aten.view.default, aten._unsafe_view.default)


def join_rows(state: Rewriting) -> int:
    """`bmm` with one matrix, expanded, for all batches becomes `mm`, where the rows need not be copied; that
    of a single batch does, too.
    """
    if state.stage != "inference":
        return 0

    def joined(node: Node) -> Callable[[], Node] | None:
        if node.target is not aten.bmm.default:
            return None
        left, right = cast(tuple[Node, Node], node.args)
        value, weight = tensor_value(left), _expanded(right)
        if value is None:
            return None
        if weight is None:
            single = same_number(value.shape[0], 1) and right.target is not aten.expand.default
            return (lambda: _of_one_batch(state, node, left, right)) if single else None
        source = _rows_before_images(left)
        if source is not None and not state.escapes(source):
            rows = [prod(value.shape[:2]), value.shape[2]]
            return lambda: _multiplied(state, node, (aten.view.default, source, rows), weight)
        if same_number(value.shape[0], 1):
            return lambda: _multiplied(state, node, (aten.squeeze.dim, left, 0), weight)
        return None

    return state.replace_each(joined)


def _of_one_batch(state: Rewriting, node: Node, left: Node, right: Node) -> Node:
    weight = state.call_before(node, aten.squeeze.dim, (right, 0))
    return _multiplied(state, node, (aten.squeeze.dim, left, 0), weight)


def _multiplied(state: Rewriting, node: Node, rows: tuple[Any, Node, Any], weight: Node) -> Node:
    """`node` as the matmul of a view, given as its operator and arguments, and a weight."""
    target, *arguments = rows
    found = state.call_before(node, target, tuple(arguments))
    result = state.call_before(node, aten.mm.default, (found, weight))
    if target is aten.squeeze.dim:
        return state.call_before(node, aten.unsqueeze.default, (result, 0))
    return state.call_before(node, aten.view.default, (result, list(node.meta["val"].shape)))


def _expanded(right: Node) -> Node | None:
    """The matrix that a right operand repeats for every batch, its rows and columns as they are."""
    source = right.args[0] if right.target is aten.expand.default else None
    value, repeated = tensor_value(source), tensor_value(right)
    if not isinstance(source, Node) or value is None or repeated is None or value.dim() != 2:
        return None
    return source if same_sizes(value.shape, repeated.shape[1:]) else None


def _rows_before_images(left: Node) -> Node | None:
    """What holds the rows of `left` one after the other, if that was copied to an image with the channels
    second whose pixels are the rows: vision models lay the result of a stage out so for the next one.
    """
    if left.target is not aten.permute.default or left.args[1] != [0, 2, 1]:
        return None
    flat: Any = left.args[0]
    copy: Any = flat.args[0] if isinstance(flat, Node) and flat.target in _VIEWS else None
    image: Any = copy.args[0] if isinstance(copy, Node) and copy.target is aten.clone.default else None
    if not isinstance(image, Node) or image.target is not aten.permute.default:
        return None
    source, order = cast(tuple[Node, list[int]], image.args)
    shapes = [value.shape for value in map(tensor_value, (source, copy, flat)) if value is not None]
    if len(shapes) != 3 or any(type(size) is not int for shape in shapes for size in shape):
        return None
    last, (_, joined, parts) = len(order) - 1, shapes
    channels_second = last > 1 and [d % len(order) for d in order] == [0, last, *range(1, last)]
    flattened = tuple(parts) == (*joined[:2], prod(joined[2:]))
    lies_in_order = all(is_contiguous(node.meta["val"]) for node in (source, copy))
    return source if channels_second and flattened and lies_in_order else None
