"""Attention with a mask that lets each query see the keys up to its own position."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from torch.fx import Node

from polyfuse.frontend.rewrites.masks.positions import AtMost, Positions
from polyfuse.frontend.rewrites.tools import Rewriting, aten, same_number, tensor_value, uniform_value

_CAUSAL: Final = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 4),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (1, 7),
}
"""Those that may leave out what a causal mask hides: the positions of queries, before which there may be
gradients, and of the argument that says so.
"""


def call_causal(state: Rewriting) -> int:
    """Attention that is causal by its argument, where its mask is what positions make of it.

    While a graph is captured, models compute the mask that they leave out in eager mode: whether a batch
    holds several sequences, and with it whether the mask is the plain causal one, is data to them. Attention
    then looks at all keys, where a causal one leaves out half of them.
    """
    if state.settings.numerics == "eager":
        return 0
    positions = Positions()
    return state.replace_each(lambda node: _instead(state, node, positions))


def _instead(state: Rewriting, node: Node, positions: Positions) -> Callable[[], Node] | None:
    if node.target not in _CAUSAL:
        return None
    first, flag = _CAUSAL[node.target]
    given = node.args[flag] if len(node.args) > flag else node.kwargs.get("is_causal", False)
    mask = node.kwargs.get("attn_mask")
    if given is not False or not isinstance(mask, Node):
        return None
    query, key = (tensor_value(argument) for argument in node.args[first : first + 2])
    if query is None or key is None or not same_number(query.shape[-2], key.shape[-2]):
        return None
    if not _is_causal(mask, query.shape[-2], positions):
        return None
    args = (*node.args[:flag], True, *node.args[flag + 1 :])
    if len(node.args) < flag:
        args = (*node.args, node.kwargs.get("dropout_p", 0.0), True)
    options = {k: v for k, v in node.kwargs.items() if k not in ("attn_mask", "is_causal", "dropout_p")}

    return lambda: state.call_before(node, node.target, args, options)


def _is_causal(mask: Node, length: Any, positions: Positions) -> bool:
    """Whether a mask hides the keys behind each query's position, and no other one."""
    value = tensor_value(mask)
    if value is None or value.dim() < 2 or not all(same_number(n, length) for n in value.shape[-2:]):
        return False
    seen = _seen(mask)
    found = positions.of(seen) if seen is not None else None
    if not isinstance(found, AtMost) or len(found.numbers.steps) < 2:
        return False
    *outer, queries, keys = found.numbers.steps
    wanted = ((found.numbers.start, 0), (queries, -1), (keys, 1), *((step, 0) for step in outer))
    return all(same_number(a, b) for a, b in wanted)


def _seen(mask: Node) -> Node | None:
    """The truth values of a mask, or of what is added to scores: zero, or minus infinity."""
    expanded = mask
    while expanded.target in (aten.expand.default, aten.clone.default) and isinstance(expanded.args[0], Node):
        expanded = expanded.args[0]
    if expanded.target is not aten.where.self:
        return mask
    condition, shown, hidden = expanded.args
    numbers = uniform_value(shown), uniform_value(hidden)
    added = numbers[0] == 0 and numbers[1] == -math.inf
    return condition if added and isinstance(condition, Node) else None
