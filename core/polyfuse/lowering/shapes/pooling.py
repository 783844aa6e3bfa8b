"""Pooling over windows, forward and backward: averages.

Small windows are written out element by element, so that pooling is a pointwise operator that fuses like any
other and vectorises along rows. Backwards gather: each input element sums what the windows over it pass back,
so there is nothing to lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import less, masked
from polyfuse.lowering.reductions.reduction import from_zero, number
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.windows import (
    LARGEST_WRITTEN_OUT,
    AnyWindows,
    Axes,
    Windows,
    adaptive_windows,
    added,
    element,
    ordered_as,
    pooled_rank,
    steps_of,
    sum_over_windows,
    summed,
    windows_of,
)
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import make
from polyfuse.symbolic import IndexLike, maximum, minimum

_MANY = 4
"""Elements of a window from which on what it passes back is stored."""


@lowers("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default", stores=(0,))
def avg_pool(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    include_pad: bool = True,
    override: int | None = None,
) -> TensorValue:
    w = windows_of(pooled_rank(node), kernel, stride, padding)
    return _average(ctx, node, value, w, include_pad, override)


def _average(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    w: Windows,
    include_pad: bool = True,
    override: int | None = None,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind, rank = result.kernel_type.compute, len(w.kernel)
    total = _window_sum(ctx, value, w, result)
    total = from_zero(total) if kind.is_float else total
    shape = value.size[-rank:], result.size[-rank:]
    count = _divisor(w, axes_of(result.size)[-rank:], *shape, include_pad, override, kind)
    return ctx.lazy(result, make("div" if kind.is_float else "trunc_div", total, count))


def _window_sum(ctx: LoweringContext, value: TensorValue, w: AnyWindows, result: TensorValue) -> Expr:
    zero = const(0, result.kernel_type.compute)
    return summed(ctx, result, w.counts, lambda p, step: element(w, value, p, w.indices(p, step), zero))


def _divisor(
    w: Windows, window: Axes, size: Axes, out_size: Axes, include_pad: bool, override: int | None, kind: DType
) -> Expr:
    """How many elements a window counts, one of those that exist."""
    if override:
        return number(override, kind)
    count = 1
    lengths: list[IndexLike] = []
    for d, (a, n, out) in enumerate(zip(window, size, out_size, strict=True)):
        beside = w.padding[d] if include_pad else 0
        last = (out - 1) * w.stride[d] - w.padding[d] + w.kernel[d] - (n + beside)
        if beside == w.padding[d] and isinstance(last, int) and last <= 0:
            # no window reaches beyond what is counted, whatever the index of those that do not exist
            count *= w.kernel[d]
            continue
        start = a * w.stride[d] - w.padding[d]
        first = start if include_pad else maximum(start, 0)
        lengths.append(minimum(start + w.kernel[d], n + beside) - first)
    # a product of numbers: one of indices would be multiplied out
    total = number(count, kind)
    for length in lengths:
        total = make("mul", total, number(length, kind))
    return total


@lowers("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default", stores=(0,))
def avg_pool_backward(
    ctx: LoweringContext,
    node: Any,
    grad: TensorValue,
    value: TensorValue,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    include_pad: bool,
    override: int | None,
) -> TensorValue:
    w = windows_of(pooled_rank(node), kernel, stride, padding)
    return _average_backward(ctx, node, grad, w, include_pad, override)


def _average_backward(
    ctx: LoweringContext,
    node: Any,
    grad: TensorValue,
    w: Windows,
    include_pad: bool = True,
    override: int | None = None,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind, rank = result.kernel_type.compute, len(w.kernel)
    axes = axes_of(result.size)

    def counted(window: Axes) -> Expr:
        return _divisor(w, window, result.size[-rank:], grad.size[-rank:], include_pad, override, kind)

    def whole(window: Sequence[IndexLike]) -> Expr:
        return grad.at([*axes[:-rank], *window])

    def share(window: Sequence[IndexLike]) -> Expr:
        return make("div", whole(window), counted(window))

    zero, usual = const(0.0, kind), counted(axes[-rank:])
    if usual.op == "const" and not ctx.eager_rounding:
        # all windows are equally large: one division does for all
        return ctx.lazy(result, make("div", sum_over_windows(w, axes, grad.size, whole, zero), usual))
    return ctx.lazy(result, sum_over_windows(w, axes, grad.size, share, zero))


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default", stores=(0,))
def adaptive_avg_pool(ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind, rank = result.kernel_type.compute, len(output_size)
    if not kind.is_float:
        raise UnsupportedError(f"no kernel averages {result.torch_dtype}")
    if 0 in value.size[1:]:
        raise UnsupportedError("eager mode refuses to average nothing")
    w = adaptive_windows(value.size[-rank:], result.size[-rank:])
    if w.even is not None:
        return _average(ctx, node, value, w.even)
    count = number(w.elements(axes_of(result.size)), kind)
    return ctx.lazy(result, make("div", _window_sum(ctx, value, w, result), count))


@lowers(
    "aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default", stores=(0,)
)
def adaptive_avg_pool_backward(
    ctx: LoweringContext, node: Any, grad: TensorValue, value: TensorValue
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    kind, rank = result.kernel_type.compute, pooled_rank(node)
    w = adaptive_windows(result.size[-rank:], grad.size[-rank:])
    if w.even is not None:
        return _average_backward(ctx, node, grad, w.even)
    if math.prod(w.overlaps) > LARGEST_WRITTEN_OUT:
        raise UnsupportedError("no kernel computes the backward of heavily overlapping adaptive windows")
    # what a window passes to each of its elements is computed once, and one dimension after the other is
    # spread out: the last pass, the largest, then reads contiguous memory
    inner, lead = axes_of(grad.size), grad.rank - rank
    like = TensorValue(kind, kind.torch, grad.device, grad.size, grad.stride)
    found = ctx.lazy(like, make("div", grad.at(inner), number(w.elements(inner), kind)))
    for d in reversed(range(rank)):
        if math.prod(w.size) >= _MANY * math.prod(w.out):
            ctx.realize(found, "read by many elements")
        size = (*grad.size[: lead + d], *result.size[lead + d :])
        spread = _spread_out(found, lead + d, size)
        like = result if d == 0 else ordered_as(result, kind, size)
        found = ctx.lazy(like, spread)
    return found


def _spread_out(shares: TensorValue, dim: int, size: tuple[IndexLike, ...]) -> Expr:
    """What an element gets along one dimension: the sum of the shares of the windows that it is in."""
    axes, m = axes_of(size), shares.size[dim]
    over = adaptive_windows((m,), (size[dim],))  # the windows over an element, as if they were its elements
    zero = const(0.0, shares.kernel_type.compute)

    def term(step: Sequence[int]) -> Expr:
        (window,), (end,) = over.indices((axes[dim],), step), over.ends((axes[dim],))
        share = shares.at([*axes[:dim], 0 if m == 1 else window, *axes[dim + 1 :]])
        return masked(share, less(window, end), zero)

    return added(map(term, steps_of(over.counts)))
