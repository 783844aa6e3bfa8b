"""Attention with a mask that lets each query see all keys, or those up to its own position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.masks.positions import AtMost, Even, Known, Positions
from polyfuse.frontend.rewrites.tools import (
    Rewriting,
    aten,
    same_number,
    same_sizes,
    tensor_value,
    uniform_value,
)
from polyfuse.torch_compat import ops


@dataclass(frozen=True)
class _Operands:
    """Positions in the arguments of an attention that can be called without its mask.

    Attributes:
        query: of the queries, which keys follow.
        causal: of the argument that says so.
        mask: of the mask; None: it is the keyword `attn_mask`.
        dropout: of the probability of dropout.
        gradients: of what says which operands need gradients, the mask last; None: it has none.
        hidden: numbers that hide, besides minus infinity.
    """

    query: int
    causal: int
    mask: int | None
    dropout: int
    gradients: int | None = None
    hidden: tuple[float, ...] = ()


_FINITE: Final = (-65504.0, -65536.0)
"""What torch adds to scores for one of its libraries where a mask hides: of f16 and of bf16."""


_CALLS: Final = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _Operands(0, 4, None, 3),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _Operands(1, 7, None, 6),
    aten._scaled_dot_product_efficient_attention.default: _Operands(0, 6, 3, 5),
    aten._scaled_dot_product_efficient_attention_backward.default: _Operands(1, 11, 4, 9, 10),
    aten._scaled_dot_product_cudnn_attention.default: _Operands(0, 6, 3, 5, None, _FINITE),
    aten._scaled_dot_product_cudnn_attention_backward.default: _Operands(1, 14, 8, 13, None, _FINITE),
}


def leave_out_masks(state: Rewriting) -> int:
    """Attention without a mask, where positions alone make it, and it hides nothing; or by the argument that
    says that it is causal, where it is that.

    While a graph is captured, models compute a mask that they leave out in eager mode: whether a batch
    holds several sequences, and with it whether the mask is the plain one, is data to them. Libraries
    read a mask for each pair of a query and a key, and a causal attention leaves out half of the keys.
    """
    if state.settings.numerics == "eager":
        return 0
    positions = Positions()
    return state.replace_each(lambda node: _instead(state, node, positions))


def _instead(state: Rewriting, node: Node, positions: Positions) -> Callable[[], Node] | None:
    if node.target not in _CALLS:
        return None
    at = _CALLS[node.target]
    args = _positional(node)
    mask = node.kwargs.get("attn_mask") if at.mask is None else args[at.mask]
    if args[at.causal] is not False or not isinstance(mask, Node):
        return None
    # which numbers are dropped is the kernel's own order, and gradients of a mask are its numbers'
    if not same_number(args[at.dropout], 0.0) or (at.gradients is not None and args[at.gradients][3]):
        return None
    query, key = (tensor_value(argument) for argument in args[at.query : at.query + 2])
    if query is None or key is None:
        return None
    seen, hidden = _seen(mask)
    found = positions.of(seen)
    if not _is_true(found):
        square = same_number(query.shape[-2], key.shape[-2])
        if hidden not in (-math.inf, *at.hidden) or not square:
            return None
        if not _is_causal(mask, found, query.shape[-2]):
            return None
        args[at.causal] = True
    if at.mask is not None:
        args[at.mask] = None
    options = {k: v for k, v in node.kwargs.items() if k == "scale"}

    return lambda: state.call_before(node, node.target, tuple(args), options)


def _positional(node: Node) -> list[Any]:
    """All arguments of a call that have positions, with the defaults of those that are not given."""
    expected = [a for a in cast(ops.OpOverload, node.target)._schema.arguments if not a.kwarg_only]
    rest = expected[len(node.args) :]
    return [*node.args, *(node.kwargs.get(a.name, a.default_value) for a in rest)]


def _is_true(found: Known | None) -> bool:
    """Whether truth values hide nothing."""
    return isinstance(found, Even) and found.uniform and same_number(found.start, 1)


def _is_causal(mask: Node, found: Known | None, length: Any) -> bool:
    """Whether a mask hides the keys behind each query's position, and no other one."""
    value = tensor_value(mask)
    if value is None or value.dim() < 2 or not all(same_number(n, length) for n in value.shape[-2:]):
        return False
    if not isinstance(found, AtMost) or len(found.numbers.steps) < 2:
        return False
    *outer, queries, keys = found.numbers.steps
    wanted = ((found.numbers.start, 0), (queries, -1), (keys, 1), *((step, 0) for step in outer))
    return all(same_number(a, b) for a, b in wanted)


def _seen(mask: Node) -> tuple[Node | bool | None, Any]:
    """The truth values of a mask, or of what is added to scores, which is zero where they are true; and the
    number that is added elsewhere, None where it is none.
    """
    source = _source(mask)
    value = tensor_value(source)
    if value is None or value.dtype is torch.bool:
        return mask, -math.inf
    if source.target is not aten.where.self:
        return uniform_value(source) == 0 or None, None
    condition, shown, hidden = source.args
    seen = condition if uniform_value(shown) == 0 and isinstance(condition, Node) else None
    return seen, uniform_value(hidden)


def _source(mask: Node) -> Node:
    """What a mask of zeros and infinities was before it was repeated, converted, and given longer rows in
    memory, as libraries on GPUs want it.
    """
    node = mask
    while node.args and isinstance(node.args[0], Node):
        if node.target in (aten.expand.default, aten.clone.default, aten._to_copy.default):
            node = node.args[0]
        elif node.target is aten.slice.Tensor and node.args[0].target is aten.constant_pad_nd.default:
            padded = node.args[0].args[0]
            if not isinstance(padded, Node) or not _is_start(node, node.args[0], padded):
                break
            node = padded
        else:
            break
    return node


def _is_start(part: Node, whole: Node, padded: Node) -> bool:
    """Whether a part of what was padded, behind its ends alone, is what was there before."""
    start, step = (part.args[2:3] or (0,))[0], (part.args[4:] or (1,))[0]
    before = cast(Sequence[Any], whole.args[1])[::2]
    if part.kwargs or not (start is None or same_number(start, 0)) or not same_number(step, 1):
        return False
    values = tensor_value(part), tensor_value(padded)
    if values[0] is None or values[1] is None or not all(same_number(n, 0) for n in before):
        return False
    return same_sizes(values[0].shape, values[1].shape)
