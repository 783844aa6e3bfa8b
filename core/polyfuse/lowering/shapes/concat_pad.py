"""Tensors put together, and tensors with a margin: concatenation, padding, rolling, triangles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const
from polyfuse.ir.nodes import ROWS_APART, ExternCall, LoopNode, Origin, View
from polyfuse.lowering.calls.extern import call_out
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import TRUE, all_of, at_least, between, exists, less, masked
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.views import reshape_indices, wrap
from polyfuse.lowering.shapes.windows import added
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, scalar
from polyfuse.symbolic import IndexLike, is_nonnegative, maximum, minimum, product

MOST_CHOICES = 4
"""Parts that one expression may choose among; more of them are written one after the other."""
MANY_PARTS = 12
"""From so many stored parts of SMALL_PART elements on, one library call costs less than a kernel for each."""
SMALL_PART = 4096
MOST_TAPS = 27
"""Elements that one element of a gradient may be the sum of, written out."""

Taps = list[tuple[IndexLike, Expr]]
"""Indices in one dimension, each with the condition under which it counts."""


@dataclass(frozen=True)
class Part:
    """A range of a dimension that is computed in a way of its own.

    Attributes:
        length: how long it is.
        element: from an index in each dimension, in this one from the start of the part, to the element.
        origins: what its elements were made from.
    """

    length: IndexLike
    element: Callable[[Sequence[IndexLike]], Expr]
    origins: tuple[Origin, ...] = ()


def chosen(parts: Sequence[Part], dim: int, result: TensorValue) -> Expr:
    """All parts as one expression: which one an element lies in, then where in that."""
    kind = result.kernel_type.compute
    axes = axes_of(result.size)
    starts: list[IndexLike] = [0]
    for part in parts:
        starts.append(starts[-1] + part.length)
    body: Expr | None = None
    for part, start, end in reversed(list(zip(parts, starts, starts[1:], strict=False))):
        element = cast(part.element([a - start if d == dim else a for d, a in enumerate(axes)]), kind)
        # the first condition that holds decides, yet no part may be read outside itself
        element = masked(element, at_least(axes[dim], start), const(0, kind))
        body = element if body is None else masked(element, less(axes[dim], end), body)
    assert body is not None
    return body


def written(ctx: LoweringContext, parts: Sequence[Part], dim: int, result: TensorValue) -> TensorValue:
    """All parts written into slices of a new buffer, each in a pass of its own."""
    kind = result.kernel_type
    whole = ctx.stored(result).view
    assert whole is not None
    start: IndexLike = 0
    own = ctx.origins[-1:]
    for part in parts:
        size = tuple(part.length if d == dim else n for d, n in enumerate(result.size))
        chunk = TensorValue(kind, result.torch_dtype, result.device, size, whole.stride)
        chunk.body = cast(part.element(axes_of(size)), kind.compute)
        chunk.origins = (*part.origins, *own)
        ctx.write(chunk, View(whole.buffer, size, whole.stride, start * whole.stride[dim]))
        start = start + part.length
    return result


def innermost(value: TensorValue) -> int | None:
    """The dimension whose elements are neighbours in memory."""
    found = [
        d
        for d, (n, stride) in enumerate(zip(value.size, value.stride, strict=True))
        if stride == 1 and n != 1
    ]
    return found[-1] if found else None


# Concatenation.


@lowers("aten.cat.default")
def cat(ctx: LoweringContext, node: Any, parts: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Its only reader chooses among few parts; otherwise each part is written into its slice.

    Parts that no kernel makes are joined by the library, which copies ranges of memory.
    """
    result = ctx.template(node.meta["val"])
    alone = [p for p, source in zip(parts, node.args[0], strict=True) if ctx.is_read_once(source)]
    # an empty tensor of one dimension joins with anything
    parts = [p for p in parts if p.rank == result.rank and p.size[wrap(dim, p.rank)] != 0]
    dim = wrap(dim, result.rank)
    if any(p.dtype is None or p.device != result.device for p in (result, *parts)):
        raise UnsupportedError("no kernel joins parts of these types, or on several devices")
    chunks = [_whole(p, dim) for p in parts]
    if len(parts) <= MOST_CHOICES and ctx.is_read_once(node) and _is_cheap(ctx, parts):
        return ctx.lazy(result, chosen(chunks, dim, result))
    # kernels write all of a line at once where elements of the parts are interleaved, the library one by one
    interleaved = (
        len(parts) <= MOST_CHOICES and result.stride[dim] == 1 and all(p.size[dim] == 1 for p in parts)
    )
    ready = not interleaved and _lies_ready(ctx, parts, result)
    ready = ready and not any(_may_be_in_place_output(ctx, p, dim) for p in alone)
    if ready or (len(parts) >= MANY_PARTS and _is_small(ctx, parts, result)):
        return call_out(ctx, node.meta["val"], "aten.cat.out", (tuple(parts), dim), template=False)
    return written(ctx, chunks, dim, result)


def _whole(value: TensorValue, dim: int) -> Part:
    def element(indices: Sequence[IndexLike]) -> Expr:
        return value.at([0 if n == 1 else p for n, p in zip(value.size, indices, strict=True)])

    return Part(value.size[dim], element, value.origins)


def _is_cheap(ctx: LoweringContext, parts: Sequence[TensorValue]) -> bool:
    """Whether all parts together are small enough an expression to be computed by the reader."""
    total = [ctx.costs.of(p.body) if p.body is not None else (0, 1, False) for p in parts]
    count, reads = sum(c[0] for c in total), sum(c[1] for c in total)
    return reads <= 2 * ctx.settings.max_inlined_reads and count <= ctx.settings.max_inlined_ops


def _lies_ready(ctx: LoweringContext, parts: Sequence[TensorValue], result: TensorValue) -> bool:
    """Whether the parts lie in memory ready to be copied, and no kernel could write them here instead."""
    if not all(p.faithful and p.raw is None and p.dtype is result.dtype for p in parts):
        return False
    made = {b for node in ctx.nodes if isinstance(node, LoopNode) for b in node.writes()}
    return not any(p.view is None or p.view.buffer in made for p in parts)


def _may_be_in_place_output(ctx: LoweringContext, part: TensorValue, dim: int) -> bool:
    """Whether a library call makes a part that it could write where the part is copied to."""
    if part.view is None:
        return False
    made = [
        n.op
        for n in ctx.nodes
        if isinstance(n, ExternCall) and n.out == "out" and n.outputs[0] == part.view.buffer
    ]
    return any(op in ROWS_APART or product(part.size[:dim]) == 1 for op in made)


def _is_small(ctx: LoweringContext, parts: Sequence[TensorValue], result: TensorValue) -> bool:
    elements = 1
    for n in result.size:
        elements *= ctx.sizes.hint(n)
    return all(p.faithful and p.dtype is result.dtype for p in parts) and elements <= SMALL_PART * len(parts)


# Padding.


@lowers("aten.constant_pad_nd.default")
def constant_pad(
    ctx: LoweringContext, node: Any, value: TensorValue, pad: Sequence[IndexLike], fill: Any = 0
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind = result.kernel_type
    indices = _shifted(axes_of(result.size), pad)
    if value.view is None and _feeds_depthwise_loops(ctx, node, result):
        ctx.realize(value, "read with a margin by a convolution")
    default = ctx.rounded(
        scalar(fill, kind.compute)
        if isinstance(fill, (bool, int, float))
        else ctx.operand(fill, (), kind.compute, result.device),
        kind,
    )
    return ctx.lazy(result, masked(value.at(indices), exists(indices, value.size), default))


def _feeds_depthwise_loops(ctx: LoweringContext, node: Any, result: TensorValue) -> bool:
    """Whether only depthwise convolutions that become loops read a padded tensor: its margin can be a
    condition of theirs, if what is padded is stored.
    """
    return (
        ctx.target_info(result.device).depthwise_loops
        and result.rank == 4
        and result.stride[1] == 1
        and bool(node.users)
        and all(
            user.target is torch.ops.aten.convolution.default
            and user.args[0] is node
            and user.args[8] == result.size[1]
            for user in node.users
        )
    )


def _shifted(axes: Sequence[IndexLike], pad: Sequence[IndexLike]) -> list[IndexLike]:
    """Where elements of a padded tensor come from; `pad` lists (before, after) from the last dimension on."""
    rank = len(axes)
    return [a - pad[2 * (rank - 1 - d)] if 2 * (rank - 1 - d) < len(pad) else a for d, a in enumerate(axes)]


_MARGINS = ("reflection", "replication")


@lowers(*(f"aten.{margin}_pad{n}d.default" for margin in _MARGINS for n in (1, 2, 3)))
def edge_pad(ctx: LoweringContext, node: Any, value: TensorValue, pad: Sequence[IndexLike]) -> TensorValue:
    """Margins filled from inside: mirrored about the edge, or the edge itself.

    Along memory the middle and the margins are parts, so that the middle is read as it lies.
    """
    result = ctx.template(node.meta["val"])
    mirrored = "reflection" in str(node.target)
    if mirrored or not all(isinstance(p, int) for p in pad):
        _require_margins(pad)
    first = value.rank - len(pad) // 2
    # a margin below nothing cuts off
    along = innermost(result) if all(is_nonnegative(p) for p in pad) else None

    def at(indices: Sequence[IndexLike]) -> Expr:
        sources = _shifted(indices, pad)
        for d in range(first, value.rank):
            last = value.size[d] - 1
            if d == along:
                sources[d] = indices[d]
            elif mirrored:
                away = last - maximum(sources[d], -sources[d])
                sources[d] = last - maximum(away, -away)
            else:
                sources[d] = minimum(maximum(sources[d], 0), last)
        return value.at([0 if n == 1 else p for n, p in zip(value.size, sources, strict=True)])

    if along is None or along < first:
        return ctx.lazy(result, at(axes_of(result.size)))
    before, after = (pad[2 * (value.rank - 1 - along) + k] for k in (0, 1))
    n = value.size[along]
    parts = [Part(n, at)]
    if before != 0:
        parts.insert(0, _moved(before, along, at, lambda p: before - p if mirrored else 0))
    if after != 0:
        parts.append(_moved(after, along, at, lambda p: n - 2 - p if mirrored else n - 1))
    return _in_parts(ctx, node, parts, along, result)


def _moved(
    length: IndexLike,
    dim: int,
    at: Callable[[Sequence[IndexLike]], Expr],
    move: Callable[[IndexLike], IndexLike],
) -> Part:
    """A part whose element at a position of `dim` comes from elsewhere along it."""
    return Part(length, lambda indices: at([move(p) if d == dim else p for d, p in enumerate(indices)]))


def _in_parts(
    ctx: LoweringContext, node: Any, parts: Sequence[Part], dim: int, result: TensorValue
) -> TensorValue:
    """One expression if a reader computes it or loops are cut at parts, else a pass for each part."""
    if ctx.is_read_once(node) or ctx.target_info(result.device).loops_by_ranges:
        return ctx.lazy(result, chosen(parts, dim, result))
    return written(ctx, parts, dim, result)


def _require_margins(pad: Sequence[IndexLike]) -> None:
    if not all(is_nonnegative(p) for p in pad):
        raise UnsupportedError("no kernel adds margins that may be negative")


@lowers(*(f"aten.{margin}_pad{n}d_backward.default" for margin in _MARGINS for n in (1, 2, 3)))
def edge_pad_backward(
    ctx: LoweringContext, node: Any, grad: TensorValue, value: TensorValue, pad: Sequence[IndexLike]
) -> TensorValue:
    """Every element gathers the gradients of all the elements that it was copied to."""
    result = ctx.template(node.meta["val"])
    _require_margins(pad)
    mirrored = "reflection" in str(node.target)
    first = result.rank - len(pad) // 2
    axes = axes_of(result.size)
    sources: list[Taps] = []
    taps = 1
    for d, n in enumerate(result.size):
        found: Taps = [(axes[d], TRUE)]
        if d >= first:
            before, after = pad[2 * (result.rank - 1 - d)], pad[2 * (result.rank - 1 - d) + 1]
            found = _mirrored(axes[d], n, before, after) if mirrored else _repeated(axes[d], n, before, after)
        sources.append(found)
        taps *= len(found)
    if taps > MOST_TAPS:
        raise UnsupportedError(f"the gradient of an element is the sum of {taps} others")
    zero = const(0, grad.kernel_type.compute)
    terms = (
        masked(grad.at([index for index, _ in taps]), all_of(*[condition for _, condition in taps]), zero)
        for taps in combinations(*sources)
    )
    return ctx.lazy(result, added(terms))


def _mirrored(axis: IndexLike, n: IndexLike, before: IndexLike, after: IndexLike) -> Taps:
    """Indices of the padded dimension that hold element `axis`, each under its condition."""
    found: Taps = [(axis + before, TRUE)]
    if before != 0:
        found.append((before - axis, between(axis, 1, before + 1)))
    if after != 0:
        found.append((before + 2 * (n - 1) - axis, between(axis, n - 1 - after, n - 1)))
    return found


def _repeated(axis: IndexLike, n: IndexLike, before: IndexLike, after: IndexLike) -> Taps:
    if not isinstance(before, int) or not isinstance(after, int):
        raise UnsupportedError("how often the edge is repeated varies")
    found: Taps = [(axis + before, TRUE)]
    found += [(k, less(axis, 1)) for k in range(before)]
    found += [(before + n + k, at_least(axis, n - 1)) for k in range(after)]
    return found


# Rolling and triangles.


@lowers("aten.roll.default")
def roll(ctx: LoweringContext, node: Any, value: TensorValue, shifts: Any, dims: Any = ()) -> TensorValue:
    result = ctx.template(node.meta["val"])
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    if value.dtype is None or value.rank == 0:
        return ctx.lazy(result, value.at(()))
    if not dims:
        total = product(value.size)
        (flat,) = reshape_indices(axes_of(result.size), value.size, (total,))
        flat = (flat + total - shifts[0] % total) % total
        return ctx.lazy(result, value.at(reshape_indices([flat], (total,), value.size)))
    by: dict[int, IndexLike] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        d = wrap(dim, value.rank)
        by[d] = (by.get(d, 0) + shift) % value.size[d]
    along = innermost(result)

    def at(indices: Sequence[IndexLike]) -> Expr:
        moved = [
            (p + value.size[d] - by[d]) % value.size[d] if by.get(d, 0) != 0 and d != along else p
            for d, p in enumerate(indices)
        ]
        return value.at([0 if n == 1 else p for n, p in zip(value.size, moved, strict=True)])

    step = 0 if along is None else by.get(along, 0)
    if along is None or step == 0:
        return ctx.lazy(result, at(axes_of(result.size)))
    rest = value.size[along] - step
    parts = [_moved(step, along, at, lambda p: p + rest), Part(rest, at)]
    return _in_parts(ctx, node, parts, along, result)


@lowers("aten.tril.default", "aten.triu.default")
def triangle(ctx: LoweringContext, node: Any, value: TensorValue, diagonal: Any = 0) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind = result.kernel_type.compute
    axes = axes_of(result.size)
    row, column = axes[-2], axes[-1]
    # outside the triangle nothing is read, infinities and NaN included
    lower = "tril" in str(node.target)
    inside = less(column, row + diagonal + 1) if lower else at_least(column, row + diagonal)
    return ctx.lazy(result, masked(value.at(axes), inside, const(0, kind)))
