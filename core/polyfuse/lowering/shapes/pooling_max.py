"""Pooling over windows, forward and backward: maxima and where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import exists
from polyfuse.lowering.indexing.scatter import neutral
from polyfuse.lowering.reductions.reduction import reduce
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.pooling_rows import by_rows, first_largest, maximum_by_rows
from polyfuse.lowering.shapes.windows import (
    LARGEST_WRITTEN_OUT,
    AnyWindows,
    Axes,
    Windows,
    adaptive_windows,
    element,
    pooled_rank,
    steps_of,
    sum_over_windows,
    windows_of,
)
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike


@lowers("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default", stores=(0,))
def max_pool(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue, TensorValue]:
    return _maximum(ctx, node, value, windows_of(pooled_rank(node), kernel, stride, padding, dilation))


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default", stores=(0,))
def adaptive_max_pool(
    ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any
) -> tuple[TensorValue, TensorValue]:
    out = ctx.sizes.sizes(node.meta["val"][0].shape)
    rank = len(output_size)
    return _maximum(ctx, node, value, adaptive_windows(value.size[-rank:], out[-rank:]))


def _maximum(
    ctx: LoweringContext, node: Any, value: TensorValue, w: AnyWindows
) -> tuple[TensorValue, TensorValue]:
    best, position = (ctx.template(f) for f in node.meta["val"])
    kind, rank, counts = best.kernel_type.compute, best.rank, w.counts
    if kind is DType.bool:
        raise UnsupportedError("no kernel computes maxima of windows of truth values")
    if isinstance(w, Windows) and by_rows(w.kernel, w.stride, value.device):
        return maximum_by_rows(ctx, node, value, w, best, position)
    lowest = neutral("max", kind)

    def taps() -> Iterator[tuple[Expr, Expr]]:
        axes = axes_of(best.size)
        for k, step in enumerate(steps_of(counts)):
            at = w.indices(axes, step)
            # where nothing is above the lowest number, the position is that of the first element there is
            known = at if k else w.first(at)
            yield element(w, value, axes, at, lowest), index_value(_flat(known, value.size))

    def values(p: Axes) -> tuple[Expr, ...]:
        at = w.indices(p[:rank], p[rank:])
        here = index_value(_flat(at, value.size))
        if isinstance(w, Windows):
            # of equal numbers the smallest position is returned: none outside the tensor
            here = where(exists(at, value.size[-len(at) :]), here, const(2**62, DType.i64))
        return element(w, value, p[:rank], at, lowest), here

    if math.prod(counts) <= LARGEST_WRITTEN_OUT:
        return first_largest(ctx, taps(), best, position)
    target = best if best.dtype is kind else ctx.temporary(kind, best.device, best.size)
    space, dims = (*best.size, *counts), range(rank, rank + len(counts))
    found = ctx.temporary(DType.i64, position.device, position.size) if kind.is_float else position
    parts = reduce(ctx, "argmax", space, dims, values, (target, found))
    if kind.is_float:
        # of several NaN eager mode returns the last one's position, and this reduction the first one's
        last = _last_nan(ctx, value, w, position, space)
        position = ctx.lazy(position, where(make("isnan", parts[0]), last, parts[1]))
    return best if target is best else ctx.lazy(best, parts[0]), position


def _last_nan(
    ctx: LoweringContext, value: TensorValue, w: AnyWindows, position: TensorValue, space: Axes
) -> Expr:
    """The position of each window's last NaN, -1 where it has none; a reduction of its own keeps both in
    vectors, which counting backwards in the other one did not."""
    rank = position.rank
    plane = value.size[rank - len(w.counts) :]
    known = [n for n in plane if isinstance(n, int)]
    few = len(known) == len(plane) and math.prod(known) < 2**31
    kind = DType.i32 if few else DType.i64

    def values(p: Axes) -> tuple[Expr, ...]:
        at = w.indices(p[:rank], p[rank:])
        item = element(w, value, p[:rank], at, neutral("max", value.kernel_type.compute))
        here = cast(index_value(_flat(at, value.size)), kind)
        return (where(make("isnan", item), here, const(-1, kind)),)

    target = ctx.temporary(kind, position.device, position.size)
    return cast(reduce(ctx, "max", space, range(rank, len(space)), values, (target,))[0], DType.i64)


def _flat(indices: Axes, size: Axes) -> IndexLike:
    """The number of a position in its plane."""
    flat: IndexLike = 0
    for p, n in zip(indices, size[-len(indices) :], strict=True):
        flat = flat * n + p
    return flat


@lowers(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
    stores=(0, 7),
)
def max_pool_backward(
    ctx: LoweringContext,
    node: Any,
    grad: TensorValue,
    value: TensorValue,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: TensorValue,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind, rank = result.kernel_type.compute, pooled_rank(node)
    w = windows_of(rank, kernel, stride, padding, dilation)
    axes = axes_of(result.size)
    zero, here = const(0.0, kind), index_value(_flat(axes[-rank:], result.size))

    def passed(window: list[IndexLike]) -> Expr:
        at = [*axes[:-rank], *window]
        return where(make("eq", cast(indices.at(at), DType.i64), here), cast(grad.at(at), kind), zero)

    return ctx.lazy(result, sum_over_windows(w, axes, grad.size, passed, zero))
