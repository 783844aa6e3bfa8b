"""Pooling over windows, forward and backward: maxima and where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product as pairs
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import all_of, between
from polyfuse.lowering.indexing.scatter import neutral
from polyfuse.lowering.reductions.reduction import reduce
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.windows import (
    LARGEST_WRITTEN_OUT,
    Windows,
    binned,
    bins_of,
    element_at,
    placed,
    pooled_rank,
    sum_over_windows,
    windows_of,
)
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike, maximum


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
    best, position = (ctx.template(f) for f in node.meta["val"])
    if best.dtype is None or value.dtype is DType.bool:
        raise UnsupportedError(f"maxima of {best.torch_dtype} windows are computed by eager")
    kind = best.dtype.compute
    w = windows_of(pooled_rank(node), kernel, stride, padding, dilation)
    if w.count > LARGEST_WRITTEN_OUT:
        _reduced_max(ctx, value, w, best, position, kind)
        return best, position
    axes = axes_of(best.size)
    lead = axes[: -w.rank]
    lowest = neutral("max", kind)

    def taps() -> Iterator[tuple[Expr, Expr]]:
        for k, step in enumerate(w.steps()):
            place = placed(w, axes, step)
            # where nothing is above the lowest number, the position is that of the first element there is
            known = place if k else [maximum(p, p % d) for p, d in zip(place, w.dilation, strict=True)]
            yield element_at(value, lead, place, lowest), index_value(_flat(known, value.size))

    return _first_largest(ctx, taps(), best, position)


def _first_largest(
    ctx: LoweringContext, taps: Iterator[tuple[Expr, Expr]], best: TensorValue, position: TensorValue
) -> tuple[TensorValue, TensorValue]:
    """The largest of a few elements, each with its position, and the position of the first that large."""
    top, where_ = next(taps)
    for element, here in taps:
        # a NaN beats everything and is beaten by the next NaN, as eager mode has it
        wins = make("gt", element, top)
        if element.dtype.is_float:
            wins = make("bitwise_or", wins, make("isnan", element))
        where_ = where(wins, here, where_)
        top = make("maximum", top, element)
    return ctx.lazy(best, top), ctx.lazy(position, where_)


def _flat(place: Sequence[IndexLike], size: Sequence[IndexLike]) -> IndexLike:
    """The number of a position in its plane."""
    flat: IndexLike = 0
    for p, n in zip(place, size[-len(place) :], strict=True):
        flat = flat * n + p
    return flat


def _reduced_max(
    ctx: LoweringContext,
    value: TensorValue,
    w: Windows,
    best: TensorValue,
    position: TensorValue,
    kind: DType,
) -> None:
    rank = best.rank
    lowest = neutral("max", kind)
    beyond = const(2**62, DType.i64)

    def values(place: Sequence[IndexLike]) -> tuple[Expr, ...]:
        at = placed(w, place[:rank], place[rank:])
        exists = all_of(*(between(p, 0, n) for p, n in zip(at, value.size[-w.rank :], strict=True)))
        # of equal numbers the smallest position is kept: none outside the tensor
        here = where(exists, index_value(_flat(at, value.size)), beyond)
        return element_at(value, place[: rank - w.rank], at, lowest), here

    direct = best.dtype is kind
    target = best if direct else ctx.temporary(kind, best.device, best.size)
    parts = reduce(
        ctx, "argmax", (*best.size, *w.kernel), range(rank, rank + w.rank), values, (target, position)
    )
    if not direct:
        ctx.lazy(best, parts[0])


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default", stores=(0,))
def adaptive_max_pool(
    ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any
) -> tuple[TensorValue, TensorValue]:
    best, position = (ctx.template(f) for f in node.meta["val"])
    if best.dtype is None or value.dtype is DType.bool:
        raise UnsupportedError(f"maxima of {best.torch_dtype} windows are computed by eager")
    kind = best.dtype.compute
    rank = len(output_size)
    bins = bins_of(value.size[-rank:], best.size[-rank:])
    lowest = neutral("max", kind)
    longest = [b.longest for b in bins]
    whole = best.rank

    def tap(place: Sequence[IndexLike], step: Sequence[IndexLike]) -> tuple[Expr, Expr]:
        element, at = binned(value, bins, place, step, lowest)
        return element, index_value(_flat(at, value.size))

    if math.prod(longest) <= LARGEST_WRITTEN_OUT:
        steps = pairs(*(range(n) for n in longest))
        return _first_largest(ctx, (tap(axes_of(best.size), step) for step in steps), best, position)
    target = best if best.dtype is kind else ctx.temporary(kind, best.device, best.size)
    parts = reduce(
        ctx,
        "argmax",
        (*best.size, *longest),
        range(whole, whole + rank),
        lambda p: tap(p[:whole], p[whole:]),
        (target, position),
    )
    return best if target is best else ctx.lazy(best, parts[0]), position


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
    if result.dtype is None:
        raise UnsupportedError(f"maxima of {result.torch_dtype} windows are computed by eager")
    kind = result.dtype.compute
    w = windows_of(pooled_rank(node), kernel, stride, padding, dilation)
    axes = axes_of(result.size)
    zero = const(0.0, kind)
    here = index_value(_flat(axes[-w.rank :], result.size))

    def passed(window: list[IndexLike]) -> Expr:
        place = [*axes[: -w.rank], *window]
        return where(make("eq", cast(indices.at(place), DType.i64), here), cast(grad.at(place), kind), zero)

    return ctx.lazy(result, sum_over_windows(w, axes, grad.size, passed, zero))
