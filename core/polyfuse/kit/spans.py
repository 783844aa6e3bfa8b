"""Bounds of values, so that index arithmetic that fits in 32 bits is done in 32 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias, assert_never

from polyfuse.ir.statements import (
    Cast,
    Compute,
    Constant,
    IndexValue,
    Load,
    Random,
    Reduce,
    Scan,
    Statement,
    Store,
)
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, bounds

Span: TypeAlias = tuple[float, float]

_TYPES: Mapping[DType, Span] = {
    DType.i8: (-(1 << 7), (1 << 7) - 1),
    DType.u8: (0, (1 << 8) - 1),
    DType.i16: (-(1 << 15), (1 << 15) - 1),
    DType.i32: (-(1 << 31), (1 << 31) - 1),
}


def known_range(index: IndexLike) -> tuple[int, int] | None:
    """Inclusive bounds of an index where both are known."""
    low, high = bounds(index)
    return None if low is None or high is None else (low, high)


def fits_i32(span: Span | None) -> bool:
    """Whether every value of a range is a 32-bit integer."""
    return span is not None and span[0] >= -(1 << 31) and span[1] < 1 << 31


def type_span(dtype: DType) -> Span | None:
    """Inclusive bounds of all values of an integer type of at most 32 bits."""
    return _TYPES.get(dtype)


def span_of(stmt: Statement, operands: Sequence[Span | None]) -> Span | None:
    """Inclusive bounds of a statement's value from those of its operands; None where there are none within 32
    bits.
    """
    match stmt:
        case Constant():
            value = float(stmt.value)
            return (value, value) if abs(value) < 1 << 31 else None
        case IndexValue():
            return known_range(stmt.index)
        case Load() | Store() | Random() | Reduce() | Scan():
            return None
        case Compute() | Cast():
            pass
        case _:
            assert_never(stmt)
    given = operands[1:] if stmt.op == "where" else operands
    known = [span for span in given if span is not None]
    if not known or len(known) != len(given) or len(known) > 2:
        return None
    found = _combined(stmt, *known[0], *known[-1])
    if found is None or not fits_i32(found):
        return None
    if stmt.dtype.is_float and stmt.op in ("add", "sub", "mul", "cast"):
        # room for rounding
        slack = max(map(abs, found)) * 1e-6
        return found[0] - slack, found[1] + slack
    return found


def _combined(stmt: Statement, low: float, high: float, low2: float, high2: float) -> Span | None:
    op = stmt.op
    if op == "add":
        return low + low2, high + high2
    if op == "sub":
        return low - high2, high - low2
    if op == "mul":
        corners = [a * b for a in (low, high) for b in (low2, high2)]
        return min(corners), max(corners)
    if op == "neg":
        return -high, -low
    if op in ("minimum", "maximum"):
        pick = min if op == "minimum" else max
        return pick(low, low2), pick(high, high2)
    if op == "where":
        return min(low, low2), max(high, high2)
    if op in ("floor", "ceil", "trunc", "round"):
        return math.floor(low), math.ceil(high)
    if op in ("floor_div", "trunc_div") and low >= 0 and low2 == high2 and low2 > 0 and stmt.dtype.is_integer:
        return low // low2, high // low2
    if op in ("remainder", "fmod") and low >= 0 and low2 == high2 and low2 > 0 and stmt.dtype.is_integer:
        return 0, min(high, low2 - 1)
    if op == "cast" and stmt.dtype in (DType.f32, DType.f64, DType.i64, DType.i32):
        return (low, high) if stmt.dtype.is_float else (min(math.trunc(low), 0), max(math.trunc(high), 0))
    return None
