"""Pooling over windows, forward and backward: averages.

Small windows are written out element by element, so that pooling is a pointwise operator that fuses like any
other and vectorises along rows. Backwards gather: each input element sums what the windows over it pass back,
so there is nothing to lock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product as pairs
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of, less, masked
from polyfuse.lowering.reductions.reduction import number, reduce
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.windows import (
    LARGEST_WRITTEN_OUT,
    Windows,
    binned,
    bins_of,
    element_at,
    even_windows,
    placed,
    pooled_rank,
    sum_over_windows,
    windows_of,
)
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import make
from polyfuse.symbolic import IndexLike, maximum, minimum, product


@lowers("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default", stores=(0,))
def avg_pool(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    w = windows_of(pooled_rank(node), kernel, stride, padding)
    axes = axes_of(result.size)
    total = _window_sum(ctx, value, w, result, kind)
    shape = value.size[-w.rank :], result.size[-w.rank :]
    count = _divisor(w, axes[-w.rank :], *shape, count_include_pad, divisor_override, kind)
    return ctx.lazy(result, make("div" if kind.is_float else "trunc_div", total, count))


def _divisor(
    w: Windows,
    window: Sequence[IndexLike],
    size: Sequence[IndexLike],
    out_size: Sequence[IndexLike],
    include_pad: bool,
    override: int | None,
    kind: DType,
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


def _window_sum(
    ctx: LoweringContext, value: TensorValue, w: Windows, result: TensorValue, kind: DType
) -> Expr:
    axes = axes_of(result.size)
    lead = axes[: -w.rank]
    zero = const(0, kind)
    if w.count <= LARGEST_WRITTEN_OUT:
        total = zero
        for k, step in enumerate(w.steps()):
            element = element_at(value, lead, placed(w, axes, step), zero)
            total = make("add", total, element) if k else element
        return total
    rank = result.rank

    def values(place: Sequence[IndexLike]) -> tuple[Expr, ...]:
        return (element_at(value, place[: rank - w.rank], placed(w, place[:rank], place[rank:]), zero),)

    target = ctx.temporary(kind, result.device, result.size)
    return reduce(ctx, "sum", (*result.size, *w.kernel), range(rank, rank + w.rank), values, (target,))[0]


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
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    w = windows_of(pooled_rank(node), kernel, stride, padding)
    axes = axes_of(result.size)

    def counted(window: Sequence[IndexLike]) -> Expr:
        shape = result.size[-w.rank :], grad.size[-w.rank :]
        return _divisor(w, window, *shape, count_include_pad, divisor_override, kind)

    def element(window: Sequence[IndexLike]) -> Expr:
        return grad.at([*axes[: -w.rank], *window])

    def share(window: Sequence[IndexLike]) -> Expr:
        return make("div", element(window), counted(window))

    zero, usual = const(0.0, kind), counted(axes[-w.rank :])
    if usual.op == "const" and not ctx.eager_rounding:
        # all windows are equally large: one division does for all
        total = sum_over_windows(w, axes, grad.size, element, zero)
        return ctx.lazy(result, make("div", total, usual))
    return ctx.lazy(result, sum_over_windows(w, axes, grad.size, share, zero))


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default", stores=(0,))
def adaptive_avg_pool(ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None or not result.dtype.is_float:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    rank = len(output_size)
    bins = bins_of(value.size[-rank:], result.size[-rank:])
    axes = axes_of(result.size)
    zero = const(0.0, kind)
    if all(b.is_even for b in bins):
        w = even_windows(bins)
        return ctx.lazy(result, make("div", _window_sum(ctx, value, w, result, kind), number(w.count, kind)))
    longest = [b.longest for b in bins]
    count = product(b.end(a) - b.start(a) for b, a in zip(bins, axes[-rank:], strict=True))
    if math.prod(longest) <= LARGEST_WRITTEN_OUT:
        total = zero
        for k, step in enumerate(pairs(*(range(n) for n in longest))):
            term, _ = binned(value, bins, axes, step, zero)
            total = make("add", total, term) if k else term
    else:
        whole = result.rank
        target = ctx.temporary(kind, result.device, result.size)
        (total,) = reduce(
            ctx,
            "sum",
            (*result.size, *longest),
            range(whole, whole + rank),
            lambda p: (binned(value, bins, p[:whole], p[whole:], zero)[0],),
            (target,),
        )
    return ctx.lazy(result, make("div", total, number(count, kind)))


@lowers(
    "aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default", stores=(0,)
)
def adaptive_avg_pool_backward(
    ctx: LoweringContext, node: Any, grad: TensorValue, value: TensorValue
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    rank = pooled_rank(node)
    bins = bins_of(result.size[-rank:], grad.size[-rank:])
    axes = axes_of(result.size)
    if all(b.is_even for b in bins):
        windows = [
            0 if b.out == 1 else a // (b.size // b.out) for a, b in zip(axes[-rank:], bins, strict=True)
        ]
        return ctx.lazy(
            result, make("div", grad.at([*axes[:-rank], *windows]), number(even_windows(bins).count, kind))
        )
    overlap = [b.overlap for b in bins]
    if math.prod(overlap) > LARGEST_WRITTEN_OUT:
        raise UnsupportedError("the backward of heavily overlapping adaptive windows is left to eager")
    total = zero = const(0.0, kind)
    for k, step in enumerate(pairs(*(range(n) for n in overlap))):
        windows = [b.first(a) + t for b, a, t in zip(bins, axes[-rank:], step, strict=True)]
        inside = all_of(
            *(less(w, b.last(a) + 1) for w, b, a in zip(windows, bins, axes[-rank:], strict=True))
        )
        count = product(b.end(w) - b.start(w) for b, w in zip(bins, windows, strict=True))
        term = masked(make("div", grad.at([*axes[:-rank], *windows]), number(count, kind)), inside, zero)
        total = make("add", total, term) if k else term
    return ctx.lazy(result, total)
