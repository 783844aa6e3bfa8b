"""Attention that a model spells out as two matmuls around a softmax, and attention whose keys and values a
model repeats, so that each query head has its own copy of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, nan, prod
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import (
    Rewriting,
    aten,
    same_number,
    same_sizes,
    tensor_value,
    uniform_value,
)
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import shapes

_WIDEST: Final = 256
"""Numbers of a head that the library's kernels take."""
_HIDDEN = -1e30
"""What is at most this and replaces a score hides its key, as if it were added to the score."""
_MASKS: Final = (torch.float32, torch.bfloat16)
"""Types of numbers that are added to scores."""


@dataclass(frozen=True)
class _Step:
    """What a model does to scores: it multiplies them, adds a tensor, or puts a number in the stead of those
    for which a condition holds.
    """

    factor: float = 1.0
    added: Node | None = None
    hidden: Node | None = None
    instead: float = 0.0
    by_heads: bool = False
    """Whether images and heads are one axis of what is added."""


@dataclass(frozen=True)
class _Scores:
    """What a softmax is taken of: queries times keys, and what becomes of it, step by step."""

    matmul: Node
    size: tuple[Any, ...]
    steps: tuple[_Step, ...]

    @property
    def scale(self) -> float:
        """The product of all factors."""
        return prod(step.factor for step in self.steps)

    @property
    def operands(self) -> tuple[Node, Node]:
        """Queries and keys, with images and heads as one axis."""
        left, right = self.matmul.args[-2:]
        return left, right

    @property
    def masks(self) -> tuple[_Step, ...]:
        """The steps that add or hide something."""
        return tuple(step for step in self.steps if step.added is not None or step.hidden is not None)


def fuse_attention(state: Rewriting) -> int:
    """The library's attention instead of two matmuls and the softmax between them.

    In inference, in types for which a device says so (`Device.spelled_attention`), where nothing else reads
    what lies between: (batch, heads, queries, keys), with a factor. Numbers between are not rounded to 16
    bits then. On the CPU also with a mask or a bias, in f32 where it is made of several tensors. Where all of
    a row is masked by minus infinity, a softmax gives NaN and the library zeros, which become NaN again.
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
    if scores.scale <= 0:  # libraries subtract the largest product of a row times the factor
        return None
    if scores.masks and not device_of(result.device.type).is_host:
        return None
    left, right = scores.operands
    query, rows = _heads(left, batch, heads), _rows_of(right)
    key = _heads(right if rows is None else rows, batch, heads)
    value = _heads(node.args[1], batch, heads)
    if query is None or key is None or value is None:
        return None
    width, values = query.meta["val"].shape[-1], value.meta["val"].shape[-1]
    if not isinstance(width, int) or not same_number(width, values) or width > _WIDEST:
        return None
    if not same_sizes(query.meta["val"].shape, (batch, heads, queries, width)):
        return None

    def fused() -> Node:
        by_keys = key
        if rows is None:
            by_keys = state.call_before(end, aten.permute.default, (key, [0, 1, 3, 2]))
        return _call(state, end, (query, by_keys, value), scores)

    return fused


def _rows_of(operand: Any) -> Node | None:
    """What a matmul's right operand is the transposed of, if images and heads are one axis of it."""
    if isinstance(operand, Node) and operand.target is aten.permute.default and operand.args[1] == [0, 2, 1]:
        return operand.args[0]
    return None


def _call(state: Rewriting, end: Node, operands: tuple[Node, Node, Node], scores: _Scores) -> Node:
    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        return state.call_before(end, target, args, kwargs)

    def by_rows(operand: Node) -> Node:
        found = operand.meta["val"]
        if same_number(found.shape[-1], 1) or same_number(found.stride(-1), 1):
            return operand
        return call(aten.clone.default, operand, memory_format=torch.contiguous_format)

    query, key, value = map(by_rows, operands)
    operands = query, key, value
    if device_of(end.meta["val"].device.type).is_host:
        kwargs, mask = {"scale": scores.scale}, _mask(call, scores)
        if mask is not None:
            kwargs["attn_mask"] = mask
        both = call(aten._scaled_dot_product_flash_attention_for_cpu.default, *operands, **kwargs)
        found = call(operator.getitem, both, 0)
        if mask is not None:
            highest = call(aten.amax.default, mask, [-1], True)
            no_number = _number(call, found, nan, end.meta["val"].dtype)
            found = call(aten.where.self, call(aten.eq.Scalar, highest, -inf), no_number, found)
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


def _mask(call: Callable[..., Node], scores: _Scores) -> Node | None:
    """What all steps add to scores, with four dimensions: of f32, unless it is one tensor as it is."""
    mask: Node | None = None
    as_it_is = len(scores.masks) == 1 and scores.masks[0] is scores.steps[-1] and not scores.steps[-1].hidden

    for step in scores.steps:
        if step.hidden is not None:
            hidden = _wide(call, step.hidden)
            shown = _number(call, hidden, 0.0) if mask is None else mask
            mask = call(aten.where.self, hidden, _number(call, hidden, step.instead), shown)
        elif step.added is not None:
            added = _added(call, step, scores.size)
            if not as_it_is:
                added = call(aten._to_copy.default, added, dtype=torch.float32)
            mask = added if mask is None else call(aten.add.Tensor, mask, added)
        elif mask is not None and step.factor != 1.0:
            mask = call(aten.mul.Tensor, mask, step.factor)
    return mask


def _number(call: Callable[..., Node], like: Node, value: float, dtype: torch.dtype = torch.float32) -> Node:
    """A tensor without dimensions on the device of another."""
    device = like.meta["val"].device
    return call(aten.full.default, [], value, dtype=dtype, device=device, pin_memory=False)


def _added(call: Callable[..., Node], step: _Step, size: tuple[Any, ...]) -> Node:
    """What a step adds, with four dimensions."""
    assert step.added is not None
    if not step.by_heads:
        return _wide(call, step.added)
    images_and_heads, *rest = step.added.meta["val"].shape
    outer = (1, 1) if same_number(images_and_heads, 1) else size[:2]
    return call(aten.view.default, step.added, [*outer, *rest])


def _wide(call: Callable[..., Node], node: Node) -> Node:
    """With axes of size one before those of a tensor, four in all."""
    size = node.meta["val"].shape
    return node if len(size) == 4 else call(aten.view.default, node, [1] * (4 - len(size)) + list(size))


def _scores_of(weights: Any) -> _Scores | None:
    """The scores whose softmax along the last axis a matmul's left operand is."""
    node = _through(_through(weights, aten.view.default, aten.expand.default), aten._to_copy.default)
    if not _alone(node, aten._softmax.default):
        return None
    dim, size = node.args[1], tuple(node.meta["val"].shape)
    if len(size) != 4 or dim not in (-1, 3):
        return None
    found = _scaled(node.args[0], size)
    if found is None:
        return None
    scores = _Scores(found[0], size, found[1])
    wide = [size[-1] for step in scores.masks for size in _shapes(step) if size]
    return scores if not scores.masks or any(same_number(n, size[-1]) for n in wide) else None


def _scaled(node: Any, size: tuple[Any, ...]) -> tuple[Node, tuple[_Step, ...]] | None:
    """The matmul that scores of a size are made by, and what becomes of it, first things first."""
    node = _through(node, aten._to_copy.default)
    behind = _through(node, aten.view.default)
    if _alone(behind, aten.bmm.default):
        return behind, ()
    if _alone(behind, aten.baddbmm.default):
        return _added_matmul(behind)
    value = tensor_value(node)
    if value is None or not isinstance(node, Node) or not same_sizes(value.shape, size):
        return None
    for source, step in _steps(node):
        found = _scaled(source, size)
        if found is not None:
            return found[0], (*found[1], step)
    return None


def _steps(node: Node) -> Iterator[tuple[Any, _Step]]:
    """What scores may have been before a call, and what it did to them."""
    if _alone(node, aten.mul.Tensor, aten.div.Tensor):
        source, factor = node.args
        if isinstance(factor, int | float) and factor != 0:
            yield source, _Step(1 / factor if node.target is aten.div.Tensor else float(factor))
    elif _alone(node, aten.add.Tensor) and not node.kwargs:
        for source, added in (node.args, reversed(node.args)):
            if isinstance(added, Node) and _is_mask(added):
                yield source, _Step(added=added)
    elif _alone(node, aten.where.self):
        hidden, number, source = node.args
        least = uniform_value(number)
        if isinstance(least, int | float) and least <= _HIDDEN:
            yield source, _Step(hidden=hidden, instead=float(least))


def _added_matmul(node: Node) -> tuple[Node, tuple[_Step, ...]] | None:
    """A matmul to which its call adds a tensor."""
    added, alpha, beta = node.args[0], node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if beta != 1 or not isinstance(alpha, int | float) or alpha == 0 or not _is_mask(added):
        return None
    if len(added.meta["val"].shape) != 3:
        return None
    return node, (_Step(float(alpha)), _Step(added=added, by_heads=True))


def _is_mask(node: Node) -> bool:
    """Whether a value can be added to scores."""
    value = tensor_value(node)
    return value is not None and value.dtype in _MASKS


def _shapes(step: _Step) -> list[Any]:
    """Sizes of what a step reads."""
    return [node.meta["val"].shape for node in (step.added, step.hidden) if node is not None]


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
