"""Attention whose keys and values a model repeats, so that each query head has its own copy of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, aten, same_number, same_sizes, tensor_value

_ATTENTION: Final = {
    aten._scaled_dot_product_flash_attention.default: (0.0,),
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0.0,),
    aten._scaled_dot_product_cudnn_attention.default: (None, False, 0.0),
}
"""Those in which several heads of queries may have one of keys and values: head `h` of `n` has head
`h * m // n` of `m`. With what their further operands begin there: no mask and no sums of exponentials, of
which heads would have to be known, and no dropout, which draws numbers in an order that is the kernel's own.
"""


def share_heads(state: Rewriting) -> int:
    """Give attention the keys and values that a model has, instead of one copy for each query head.

    In inference. Written as `repeat_interleave` along the heads, or as a new axis that is expanded and
    merged, each head becomes as many copies as there are heads of queries to it.
    """
    if state.stage != "inference" or state.settings.numerics == "eager":
        return 0
    return state.replace_each(lambda node: _instead(state, node))


def _instead(state: Rewriting, node: Node) -> Callable[[], Node] | None:
    if node.target not in _ATTENTION or len(node.args) < 3:
        return None
    query, key, value, *rest = node.args
    for given, wanted in zip(rest, _ATTENTION[node.target], strict=False):
        if given is not wanted and not (wanted == 0.0 and same_number(given, 0.0)):
            return None
    keys, values = _unrepeated(key), _unrepeated(value)
    if keys is None or values is None:
        return None
    if not same_sizes(keys.meta["val"].shape[:3], values.meta["val"].shape[:3]):
        return None

    def shared() -> Node:
        return state.call_before(node, node.target, (query, keys, values, *rest), dict(node.kwargs))

    return shared


def _unrepeated(node: Any) -> Node | None:
    """The heads (batch, heads, rows, width) of which a node holds several copies each, side by side."""
    merged = tensor_value(node)
    if merged is None or merged.dim() != 4:
        return None
    if node.target not in (aten.view.default, aten._unsafe_view.default):
        return None
    expanded = node.args[0]
    if isinstance(expanded, Node) and expanded.target is aten.clone.default:
        expanded = expanded.args[0]
    if not isinstance(expanded, Node) or expanded.target is not aten.expand.default:
        return None
    copies, inserted = tensor_value(expanded), expanded.args[0]
    if copies is None or copies.dim() != 5 or not isinstance(inserted, Node):
        return None
    batch, heads, times, rows, width = copies.shape
    if not (isinstance(heads, int) and isinstance(times, int) and times > 1):
        return None
    one, source = tensor_value(inserted), inserted.args[0] if inserted.args else None
    if one is None or not same_sizes(one.shape, (batch, heads, 1, rows, width)):
        return None
    found = tensor_value(source)
    if inserted.target not in (aten.unsqueeze.default, aten.view.default) or found is None:
        return None
    if not isinstance(source, Node) or not same_sizes(found.shape, (batch, heads, rows, width)):
        return None
    if not same_sizes(merged.shape, (batch, heads * times, rows, width)):
        return None
    return source if same_number(found.stride(-1), 1) else None
