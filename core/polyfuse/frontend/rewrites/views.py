"""One spelling for each kind of view, chains of one kind made one view, and what is done to a concatenation
done to its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import Node, map_arg

from polyfuse.frontend.rewrites.noop import is_pure_view
from polyfuse.frontend.rewrites.tools import (
    Rewriting,
    aten,
    is_contiguous,
    same_layout,
    same_number,
    tensor_value,
)
from polyfuse.torch_compat import ops

_PRODUCTS = (
    aten.convolution.default,
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
)
"""Operators in whose kernels what follows is computed, and whose results lie densely."""


def spell_as_permute(state: Rewriting) -> int:
    """`t`, `transpose`, `movedim` and friends become `permute`."""

    def spelled(node: Node) -> Callable[[], Node] | None:
        order = _order_of(node)
        if order is None or node.target is aten.permute.default:
            return None
        return lambda: state.call_before(node, aten.permute.default, (node.args[0], order))

    return state.replace_each(spelled)


def _order_of(node: Node) -> list[int] | None:
    """The permutation a node applies, with non-negative dimensions."""
    if node.target not in (aten.t.default, aten.transpose.int, aten.permute.default, aten.movedim.int):
        return None
    value = tensor_value(node.args[0])
    if value is None:
        return None
    order = list(range(value.dim()))
    if node.target is aten.permute.default:
        dims: Any = node.args[1]
        return [d % value.dim() for d in dims] if value.dim() else []
    if node.target is aten.t.default:
        return order[::-1]
    first: Any = node.args[1]
    second: Any = node.args[2]
    if not order:
        return order
    first, second = first % value.dim(), second % value.dim()
    if node.target is aten.transpose.int:
        order[first], order[second] = order[second], order[first]
    else:
        order.insert(second, order.pop(first))
    return order


def spell_as_view(state: Rewriting) -> int:
    """`as_strided` that only regroups a contiguous tensor becomes `view`: elements instead of memory."""

    def spelled(node: Node) -> Callable[[], Node] | None:
        source, result = tensor_value(node.args[0]) if node.args else None, tensor_value(node)
        if node.target is not aten.as_strided.default or source is None or result is None:
            return None
        moved = not same_number(source.storage_offset(), result.storage_offset())
        if moved or not (is_contiguous(source) and is_contiguous(result)):
            return None
        if not same_number(source.numel(), result.numel()):
            return None
        return lambda: state.call_before(node, aten.view.default, node.args[:2])

    return state.replace_each(spelled)


def look_at_memory(state: Rewriting) -> int:
    """`as_strided` of a view becomes one of what it looks at: elements that the view lacks are in there."""

    def moved(node: Node) -> Callable[[], Node] | None:
        result = tensor_value(node)
        if node.target is not aten.as_strided.default or result is None:
            return None
        base: Any = node.args[0]
        while isinstance(base, Node) and is_pure_view(base):
            base = base.args[0]
        start, source = result.storage_offset(), tensor_value(base)
        if base is node.args[0] or source is None or source.dtype != result.dtype:
            return None
        if not isinstance(start, int):
            return None
        return lambda: state.call_before(node, node.target, (base, node.args[1], node.args[2], start))

    return state.replace_each(moved)


def merge_views(state: Rewriting) -> int:
    """`permute` of `permute`, and `view` of `view`, as one."""

    def merged(node: Node) -> Callable[[], Node] | None:
        inner = node.args[0] if node.args else None
        if not isinstance(inner, Node) or inner.op != "call_function" or node.target is not inner.target:
            return None
        if node.target is aten.permute.default:
            outer, before = _order_of(node), _order_of(inner)
            if outer is None or before is None:
                return None
            arguments: tuple[Any, ...] = (inner.args[0], [before[d] for d in outer])
        elif node.target is aten.view.default and _viewable(inner.args[0], node):
            arguments = (inner.args[0], node.args[1])
        else:
            return None
        return lambda: state.call_before(node, node.target, arguments)

    return state.replace_each(merged)


def _viewable(source: Any, node: Node) -> bool:
    """The inner view may have split a dimension that strides alone would not let the outer one re-join
    directly.
    """
    value, result = tensor_value(source), tensor_value(node)
    return value is not None and result is not None and is_contiguous(value) and is_contiguous(result)


def activate_parts(state: Rewriting) -> int:
    """An activation of a concatenation of results of products, as in SqueezeNet, becomes one of each part:
    their kernels compute it as they store into the concatenation, and no pass over it is left.
    """
    if state.stage != "inference":
        return 0

    def moved(node: Node) -> Callable[[], Node] | None:
        joined = _joined_products(node)
        if joined is None or state.escapes(joined):
            return None

        def of_part(part: Node) -> Node:
            # the concatenation may be several operands: `c * c`
            args, kwargs = (map_arg(given, lambda _: part) for given in (node.args, node.kwargs))
            return state.call_before(node, node.target, args, kwargs)

        def parts_first() -> Node:
            parts: Any = joined.args[0]
            done = [of_part(part) for part in parts]
            return state.call_before(node, joined.target, (done, *joined.args[1:]), dict(joined.kwargs))

        return parts_first

    return state.replace_each(moved)


def _joined_products(node: Node) -> Node | None:
    """The concatenation that a node alone reads, element by element, if products make all of its parts."""
    joined = node.args[0] if node.args else None
    if not isinstance(joined, Node) or joined.target is not aten.cat.default:
        return None
    facts, parts = ops.facts(node.target), joined.all_input_nodes
    if (
        not (facts.pointwise and facts.mergeable)
        or node.all_input_nodes != [joined]
        or len(joined.users) != 1
    ):
        return None
    value, result = tensor_value(joined), tensor_value(node)
    if value is None or result is None or not same_layout(value, result):
        return None
    own = len(parts) == len(joined.args[0])
    alike = all(p.target in _PRODUCTS and len(p.users) == 1 for p in parts)
    return joined if own and alike and all(p.meta["val"].dtype == value.dtype for p in parts) else None
