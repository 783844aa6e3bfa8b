"""Attention that a model spells out as two matmuls around a softmax, and attention whose keys and values a
model repeats, so that each query head has its own copy of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, aten, same_number, same_sizes, tensor_value
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import shapes

_WIDEST: Final = 256
"""Numbers of a head that the library's kernels take."""


@dataclass(frozen=True)
class _Scores:
    """What a softmax is taken of: queries times keys, times `scale`."""

    matmul: Node
    size: tuple[Any, ...]
    scale: float


def fuse_attention(state: Rewriting) -> int:
    """The library's attention instead of two matmuls and the softmax between them.

    In inference, in types for which a device says so (`Device.spelled_attention`), where nothing else reads
    what lies between: (batch, heads, queries, keys), with a factor. Numbers between are not rounded to 16
    bits then. Not with an added mask: where all of a row is masked by minus infinity, a softmax gives NaN and
    the library zeros.
    """
    if state.stage != "inference" or state.settings.numerics == "eager":
        return 0
    return state.replace_each(lambda node: _instead(state, node))


def _instead(state: Rewriting, node: Node) -> Callable[[], Node] | None:
    """What makes the node that replaces a matmul, or that of a copy with the tokens before the heads."""
    if node.target is aten.bmm.default and _copy_of(node) is None:
        return _fused(state, node, node)
    if node.target is aten.clone.default:
        matmul = _through(_through(node.args[0], aten.permute.default), aten.view.default)
        if isinstance(matmul, Node) and matmul.target is aten.bmm.default and _copy_of(matmul) is node:
            return _fused(state, matmul, node)
    return None


def _copy_of(matmul: Node) -> Node | None:
    """The contiguous copy with tokens before heads, where that is all that becomes of a matmul's result:
    fused attention lays out its own so.
    """
    node = matmul
    for target in (aten.view.default, aten.permute.default, aten.clone.default):
        if len(node.users) != 1:
            return None
        node = next(iter(node.users))
        if node.target is not target:
            return None
        if target is aten.permute.default and list(node.args[1]) != [0, 2, 1, 3]:
            return None
    return node if node.kwargs.get("memory_format") is torch.contiguous_format else None


def _fused(state: Rewriting, node: Node, end: Node) -> Callable[[], Node] | None:
    """What computes attention instead of `end`, if a matmul is the second one of it."""
    result = tensor_value(node)
    if result is None:
        return None
    fewest = device_of(result.device.type).spelled_attention.get(result.dtype, 0)
    if not fewest:
        return None
    scores = _scores_of(node.args[0])
    if scores is None or state.settings.gemm not in ("library", "known"):
        return None
    batch, heads, queries, keys = scores.size
    if fewest > 1 and not (isinstance(queries, int) and queries >= fewest):
        return None
    if not _is_some(keys) or not same_sizes(node.args[0].meta["val"].shape[1:], (queries, keys)):
        return None
    left, right = scores.matmul.args
    query, key = _heads(left, batch, heads), _heads(right, batch, heads)
    value = _heads(node.args[1], batch, heads)
    if query is None or key is None or value is None:
        return None
    width, values = query.meta["val"].shape[-1], value.meta["val"].shape[-1]
    if not isinstance(width, int) or not same_number(width, values) or width > _WIDEST:
        return None
    if not same_sizes(query.meta["val"].shape, (batch, heads, queries, width)):
        return None

    def fused() -> Node:
        return _call(state, end, (query, key, value), scores)

    return fused


def _call(state: Rewriting, end: Node, operands: tuple[Node, Node, Node], scores: _Scores) -> Node:
    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        return state.call_before(end, target, args, kwargs)

    def by_rows(operand: Node) -> Node:
        found = operand.meta["val"]
        if same_number(found.shape[-1], 1) or same_number(found.stride(-1), 1):
            return operand
        return call(aten.clone.default, operand, memory_format=torch.contiguous_format)

    query, transposed, value = operands
    key = by_rows(call(aten.permute.default, transposed, [0, 1, 3, 2]))
    operands = by_rows(query), key, by_rows(value)
    if device_of(end.meta["val"].device.type).is_host:
        both = call(aten._scaled_dot_product_flash_attention_for_cpu.default, *operands, scale=scores.scale)
        found = call(operator.getitem, both, 0)
    else:
        found = call(aten.scaled_dot_product_attention.default, *operands, scale=scores.scale)
    tokens_first = end.target is aten.clone.default
    if tokens_first:
        found = call(aten.permute.default, found, [0, 2, 1, 3])
        if same_sizes(found.meta["val"].stride(), end.meta["val"].stride()):
            return found
    # as the matmul, or the copy, lays it out; views that follow count on it
    rows = call(aten.clone.default, found, memory_format=torch.contiguous_format)
    return rows if tokens_first else call(aten.view.default, rows, list(end.meta["val"].shape))


def _is_some(keys: Any) -> bool:
    """Whether there are keys in every call: libraries divide by their number."""
    least, _ = shapes.value_range(keys.node.shape_env if shapes.is_symbolic(keys) else None, keys)
    return least is not None and least > 0


def _alone(node: Any, *targets: Any) -> bool:
    """Whether an argument is a call of one of these operators that one call reads."""
    return isinstance(node, Node) and node.target in targets and len(node.users) == 1


def _through(node: Any, *targets: Any) -> Any:
    """What lies behind one call of these operators, if that is what a node is."""
    return node.args[0] if _alone(node, *targets) else node


def _scores_of(weights: Any) -> _Scores | None:
    """The scores whose softmax along the last axis a matmul's left operand is."""
    node = _through(_through(weights, aten.view.default, aten.expand.default), aten._to_copy.default)
    if not _alone(node, aten._softmax.default):
        return None
    dim, size = node.args[1], tuple(node.meta["val"].shape)
    if len(size) != 4 or dim not in (-1, 3):
        return None
    found = _scaled(_through(node.args[0], aten._to_copy.default))
    return None if found is None else _Scores(found[0], size, found[1])


def _scaled(node: Any) -> tuple[Node, float] | None:
    """The matmul that scores are made by, and their factor."""
    scale = 1.0
    while _alone(node, aten.mul.Tensor, aten.div.Tensor):
        factor = node.args[1]
        if not isinstance(factor, int | float) or factor == 0:
            return None
        scale = scale / factor if node.target is aten.div.Tensor else scale * factor
        node = node.args[0]
    node = _through(node, aten.view.default)
    # libraries subtract the largest product of a row times the factor, which would be the least one
    return (node, scale) if scale > 0 and _alone(node, aten.bmm.default) else None


def _heads(operand: Any, batch: Any, heads: Any) -> Node | None:
    """What a matmul's operand (batch * heads, rows, columns) is a view or copy of: (batch, heads, rows,
    columns).
    """
    source = operand.args[0] if isinstance(operand, Node) and operand.target is aten.view.default else None
    value = tensor_value(source)
    if source is None or value is None or value.dim() != 4:
        return None
    if not same_sizes(value.shape, (batch, heads, *operand.meta["val"].shape[1:])):
        return None
    while source.target in (aten.clone.default, aten.expand.default):
        behind = tensor_value(source.args[0])
        if behind is None or not same_sizes(behind.shape, value.shape):
            break
        source = source.args[0]
    return source


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
    return state.replace_each(lambda node: _with_fewer_heads(state, node))


def _with_fewer_heads(state: Rewriting, node: Node) -> Callable[[], Node] | None:
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
