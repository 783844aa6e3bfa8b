"""Variance and mean.

A row that is not too long is read twice: for the mean, and for the distances from it. The first mean
is off by what its sum lost in rounding, so the second pass adds up the distances themselves, too. They add
up to zero for the true mean; for another, to how far that is off, and the squares are too large by as much
(https://doi.org/10.2307/2683386, the corrected two-pass algorithm). So equal numbers have a variance of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, loads
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.reductions.reduction import extent, number, reduce, reduced_dims, result_index
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import make, where
from polyfuse.symbolic import IndexLike, coefficient
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx

_SHORT_SIDE = 64
"""Contiguous elements in each row of a group of columns up to which columns are reduced one by one first."""
_LONG_COLUMN = 64
"""Elements of a column from which that pays."""

_UNIT = {DType.f32: 2.0**-23, DType.f64: 2.0**-52}
"""The distance from one to the next number."""
_LARGEST = {DType.f32: (2 - 2.0**-23) * 2.0**127, DType.f64: (2 - 2.0**-52) * 2.0**1023}
"""The largest finite number."""


@lowers("aten.var_mean.correction", "aten.var.correction", "aten.std.correction", passes=2)
def var_mean(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    dims: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
) -> Any:
    """The variance, its root, or the variance and the mean."""
    name, fakes = ops.base_name(node.target), node.meta["val"]
    results = [ctx.template(fake) for fake in (fakes if name == "var_mean" else (fakes,))]
    moved = _is_running_mean(node)
    spread, centre = moments(ctx, value, reduced_dims(dims, value.rank), results[0], correction, moved)
    variance = ctx.lazy(results[0], make("sqrt", spread) if name == "std" else spread)
    return (variance, ctx.lazy(results[1], centre)) if name == "var_mean" else variance


def _is_running_mean(node: Any) -> bool:
    """Whether eager mode moves the mean from number to number, so that infinities leave NaN of it. In what it
    calls normalisations the mean is a sum that is divided, or one that nobody sees."""
    original = fx.original_operator(node)
    return original is None or ops.base_name(original) in ("var_mean", "std_mean")


def moments(
    ctx: LoweringContext,
    value: TensorValue,
    dims: tuple[int, ...],
    like: TensorValue,
    correction: Any,
    moved: bool = False,
) -> tuple[Expr, Expr]:
    """Variance and mean over `dims`, as elements of a result of the shape of `like`.

    The mean is NaN where it is infinite if it is `moved` from number to number.
    """
    if value.dtype is None or not value.dtype.is_float or like.dtype is None:
        raise UnsupportedError(f"no kernel computes moments of {value.torch_dtype}")
    kind = value.dtype.compute
    count = extent(value, dims)
    correction = 1 if correction is None else correction
    if count == 0:
        return const(math.nan, kind), const(math.nan, kind)
    deviation, centre = _deviation(ctx, value, dims, like, kind)
    if moved and count != 1:  # from one number, nothing is moved on
        centre = where(make("isnan", deviation), deviation, centre)
    return make("div", deviation, _degrees(count, correction, kind)), centre


def _deviation(
    ctx: LoweringContext, value: TensorValue, dims: tuple[int, ...], like: TensorValue, kind: DType
) -> tuple[Expr, Expr]:
    """The sum of squared distances from the mean, and the mean."""
    count = extent(value, dims)
    info = ctx.target_info(like.device)
    side = _short_side(ctx, value, dims) if info.column_bytes else None
    if side is not None:
        return _deviation_of_columns(ctx, value, dims, side, like, kind)
    if isinstance(count, int) and count <= info.two_pass_row:
        target = ctx.temporary(kind, like.device, like.size)
        (total,) = reduce(ctx, "sum", value.size, dims, lambda p: (value.at(p),), (target,))
        average = ctx.temporary(kind, like.device, like.size)
        average.body = make("div", total, number(count, kind))

        def terms(indices: Sequence[IndexLike]) -> tuple[Expr, Expr]:
            away = make("sub", value.at(indices), average.at(result_index(indices, dims, like.rank)))
            return away, make("mul", away, away)

        rest, squares = _sums(ctx, value.size, dims, terms, like, kind)
        offset = make("mul", rest, const(1 / count, kind))
        deviation, shift = _corrected(squares, make("mul", offset, rest), offset, number(count, kind))
        centre = make("add", average.at(axes_of(like.size)), shift)
    else:
        parts = [ctx.temporary(kind, like.device, like.size) for _ in range(2)]
        centre, deviation, _ = reduce(
            ctx, "welford", value.size, dims, lambda p: (value.at(p),), (*parts, None)
        )
    return deviation, centre


def _short_side(ctx: LoweringContext, value: TensorValue, dims: tuple[int, ...]) -> int | None:
    """The reduced dimension along which memory is contiguous, if it is short, neighbours of it are not
    reduced, and what else is reduced is long: as of groups of channels that are last.
    """
    read = max(
        loads(value.at(axes_of(value.size))),
        key=lambda e: ctx.sizes.hint(ctx.buffers[e.buffer].numel),
        default=None,
    )
    if read is None or len(dims) < 2:
        return None
    steps = [coefficient(read.index, f"i{d}") for d in range(value.rank)]
    side = next((d for d in dims if steps[d] == 1), None)
    if side is None or not 1 < ctx.sizes.hint(value.size[side]) <= _SHORT_SIDE:
        return None
    beside = any(d not in dims and steps[d] == value.size[side] for d in range(value.rank))
    rest = ctx.sizes.hint(extent(value, [d for d in dims if d != side]))
    return side if beside and rest >= _LONG_COLUMN else None


def _deviation_of_columns(
    ctx: LoweringContext,
    value: TensorValue,
    dims: tuple[int, ...],
    side: int,
    like: TensorValue,
    kind: DType,
) -> tuple[Expr, Expr]:
    """The same from that of each column: loops over these run along memory."""
    long = tuple(d for d in dims if d != side)
    size = tuple(1 if d in long else n for d, n in enumerate(value.size))
    spreads, centres = (ctx.temporary(kind, like.device, size) for _ in range(2))
    spreads.body, centres.body = _deviation(ctx, value, long, ctx.temporary(kind, like.device, size), kind)
    target = ctx.temporary(kind, like.device, like.size)
    (total,) = reduce(ctx, "sum", size, dims, lambda p: (centres.at(p),), (target,))
    average = ctx.temporary(kind, like.device, like.size)
    columns, weight = number(value.size[side], kind), number(extent(value, long), kind)
    average.body = make("div", total, columns)

    def terms(indices: Sequence[IndexLike]) -> tuple[Expr, Expr]:
        away = make("sub", centres.at(indices), average.at(result_index(indices, dims, like.rank)))
        return away, make("add", spreads.at(indices), make("mul", make("mul", away, away), weight))

    rest, squares = _sums(ctx, size, dims, terms, like, kind)
    offset = make("div", rest, columns)
    excess = make("mul", make("mul", offset, rest), weight)
    deviation, shift = _corrected(squares, excess, offset, columns)
    return deviation, make("add", average.at(axes_of(like.size)), shift)


def _sums(
    ctx: LoweringContext,
    size: Sequence[IndexLike],
    dims: tuple[int, ...],
    terms: Callable[[Sequence[IndexLike]], tuple[Expr, Expr]],
    like: TensorValue,
    kind: DType,
) -> tuple[Expr, Expr]:
    """The sum of distances from a number near the mean and that of their squares, in one pass."""
    targets = [ctx.temporary(kind, like.device, like.size) for _ in range(2)]
    (rest,) = reduce(ctx, "sum", size, dims, lambda p: terms(p)[:1], targets[:1])
    (squares,) = reduce(ctx, "sum", size, dims, lambda p: terms(p)[1:], targets[1:])
    return rest, squares


def _corrected(squares: Expr, excess: Expr, offset: Expr, count: Expr) -> tuple[Expr, Expr]:
    """The sum of squared distances from the mean, and what is to be added to a number to have the mean.

    `squares` are those of `count` distances from that number, too large by `excess`: the mean is `offset`
    above it. What is below the rounding of such sums is zero.
    """
    kind = squares.dtype
    zero, unit = const(0.0, kind), const(_UNIT[kind], kind)
    # squares that are infinite stay so
    excess = make("minimum", excess, const(_LARGEST[kind], kind))
    left = make("sub", squares, excess)
    deviation = where(make("lt", left, make("mul", squares, make("mul", count, unit))), zero, left)
    # an offset of less than a unit of the distances is made of their own rounding
    known = make("lt", make("mul", squares, make("mul", unit, unit)), excess)
    return deviation, where(known, offset, zero)


def _degrees(count: IndexLike, correction: Any, kind: DType) -> Expr:
    """``max(count - correction, 0)``."""
    if isinstance(count, int) and isinstance(correction, (int, float)):
        return const(max(float(count) - correction, 0.0), kind)
    left = make("sub", number(count, kind), number(correction, kind))
    return make("maximum", left, const(0.0, kind))
