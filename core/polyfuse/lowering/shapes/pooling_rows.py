"""Maxima of windows, one dimension after the other.

A window of 7x7 is 49 elements for each result; a row of seven, stored, and then seven such rows are 14.
Elements meet in the same order as in a whole window, so equal ones, NaN and signs of zeros come out alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import between, masked
from polyfuse.lowering.indexing.scatter import neutral
from polyfuse.lowering.shapes.windows import LARGEST_WRITTEN_OUT, Windows, ordered_as
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import IndexLike, maximum, product

_STORED = 1.5
"""Time for an element of windows whose rows are stored and read again, over that for one of whole windows."""


def by_rows(kernel: Sequence[int], stride: Sequence[int], device: str) -> bool:
    """Whether windows are better pooled one dimension after the other than whole.

    Args:
        kernel: elements of a window, one number a dimension.
        stride: elements between two windows.
        device: on others than the host it is cheaper to read a window again than to store rows.
    """
    if max(kernel) > LARGEST_WRITTEN_OUT or not device_of(device).is_host:
        return False
    # rows are pooled wherever they are, so for `stride` of them there is one result
    each = sum(k * math.prod(stride[:d]) for d, k in enumerate(kernel))
    return _STORED * each < math.prod(kernel)


def maximum_by_rows(
    ctx: LoweringContext, node: Any, value: TensorValue, w: Windows, best: TensorValue, position: TensorValue
) -> tuple[TensorValue, TensorValue]:
    """The largest element of each window, and where it is if somebody reads that; the last dimension goes
    first.

    Args:
        node: the traced call, whose readers say whether positions are read.
        value: what is pooled.
        best, position: the results, without content yet.
    """
    lead = value.rank - len(w.kernel)
    plane = value.size[lead:]
    known = [n for n in plane if isinstance(n, int)]
    few = len(known) == len(plane) and math.prod(known) < 2**31
    kind = DType.i32 if few else DType.i64
    needed = any(user.args[1] for user in node.users)
    rows, found = value, None
    for d in reversed(range(len(w.kernel))):
        size = (*value.size[: lead + d], *best.size[lead + d :])
        taps = _taps(w, d, rows, found, size, product(plane[d + 1 :]), kind)
        if d == 0:
            rows, found = first_largest(ctx, taps, best, position if needed else None)
            break
        stored = ordered_as(best, best.kernel_type, size)
        rows, found = first_largest(ctx, taps, stored, ordered_as(best, kind, size) if needed else None)
        for part in (rows, found):
            if part is not None:
                ctx.realize(part, "maxima of rows that several windows read")
    return rows, position if found is None else found


def _taps(
    w: Windows,
    d: int,
    rows: TensorValue,
    found: TensorValue | None,
    size: tuple[IndexLike, ...],
    behind: IndexLike,
    kind: DType,
) -> Iterator[tuple[Expr, Expr]]:
    """The elements of a window along one dimension, each with its number among those from this dimension on.

    Args:
        d: which of the pooled dimensions.
        rows: what is read, pooled already along those behind it.
        found: the numbers of its elements; None along the last dimension, or where nobody asks for them.
        size: of the result.
        behind: elements of the plane between two indices along this dimension.
        kind: in which elements are numbered.
    """
    axes, lowest = axes_of(size), neutral("max", rows.kernel_type.compute)
    dim = rows.rank - len(w.kernel) + d
    n = rows.size[dim]
    start = axes[dim] * w.stride[d] - w.padding[d]
    # where nothing is above the lowest number, the position is that of the first element there is
    first = maximum(start, start % w.dilation[d])
    for step in range(w.kernel[d]):
        at = start + step * w.dilation[d]
        there = between(at, 0, n)

        def read(value: TensorValue, index: IndexLike) -> Expr:
            return value.at([*axes[:dim], 0 if n == 1 else index, *axes[dim + 1 :]])

        known = at if step else first
        here = cast(index_value(known * behind), kind)
        if found is not None:
            inner = masked(read(found, at), there, const(0, kind)) if step else read(found, first)
            here = make("add", here, inner)
        yield masked(read(rows, at), there, lowest), here


def first_largest(
    ctx: LoweringContext, taps: Iterator[tuple[Expr, Expr]], best: TensorValue, position: TensorValue | None
) -> tuple[TensorValue, Any]:
    """The largest of a few elements, each with its position, and the position of the first that large; None
    for it where none is asked for.
    """
    top, where_ = next(taps)
    for item, here in taps:
        if position is not None:
            # a NaN beats everything and is beaten by the next NaN, as eager mode has it
            wins = make("gt", item, top)
            if item.dtype.is_float:
                wins = make("bitwise_or", wins, make("isnan", item))
            where_ = where(wins, here, where_)
        top = make("maximum", top, item)
    return ctx.lazy(best, top), None if position is None else ctx.lazy(position, where_)
