"""Conversions that need not be made: pairs that lose nothing."""

from __future__ import annotations

import math
from functools import lru_cache

from polyfuse.ir.expr import Expr
from polyfuse.ir.expr import cast as plain_cast
from polyfuse.ir.types import DType
from polyfuse.rewrite.fold import round_half

_EXACT_BITS = {
    DType.f64: 53,
    DType.f32: 24,
    DType.bf16: 8,
    DType.f16: 11,
    DType.f8e4m3: 4,
    DType.f8e5m2: 3,
    DType.f8e4m3fnuz: 4,
    DType.f8e5m2fnuz: 3,
}


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide is narrow or narrow is DType.bool:
        return True
    if wide is DType.bool:
        return False
    if wide.is_float and narrow.is_float:
        return wide in (DType.f32, DType.f64) and wide.itemsize >= narrow.itemsize
    if narrow.is_float:
        return False
    bits = narrow.itemsize * 8 - narrow.is_signed
    if wide.is_float:
        return bits <= _EXACT_BITS[wide]
    if narrow.is_signed and not wide.is_signed:
        return False
    return bits <= wide.itemsize * 8 - wide.is_signed


_KEEPING = {
    "neg": (0,),
    "abs": (0,),
    "where": (1, 2),
    "maximum": (0, 1),
    "minimum": (0, 1),
    "fmax": (0, 1),
    "fmin": (0, 1),
}
"""Operations whose result is one of their operands, perhaps with another sign: which ones."""


@lru_cache(maxsize=4096)
def is_held(value: Expr, dtype: DType) -> bool:
    """Whether `value` certainly is a value of the half-precision type `dtype`, though computed in a wider
    one.
    """
    if holds(dtype, value.dtype):
        return True
    if value.op == "cast":
        return holds(dtype, value.args[0].dtype)
    if value.op == "const":
        if not dtype.has_negative_zero and value.value == 0:
            return math.copysign(1, value.value) > 0
        return value.dtype.is_float and _is_same(float(value.value), round_half(value.value, dtype))
    if value.op == "neg" and not dtype.has_negative_zero:
        return False
    chosen = _KEEPING.get(value.op)
    return chosen is not None and all(is_held(value.args[k], dtype) for k in chosen)


def _is_same(a: float, b: float) -> bool:
    return a == b or (a != a and b != b)


def cast(value: Expr, dtype: DType) -> Expr:
    """`value` converted, through as few conversions as give the same result."""
    if value.dtype is dtype:
        return value
    if value.op == "cast":
        inner = value.args[0]
        # to a wider type and back again, or on to a third type: what came in between held every value
        if holds(value.dtype, inner.dtype) and not _wraps(inner.dtype, dtype):
            return cast(inner, dtype)
        # integers keep their low bits through any wider integer
        if inner.dtype.is_integer and value.dtype.is_integer and dtype.is_integer:
            if value.dtype.itemsize >= dtype.itemsize:
                return cast(inner, dtype)
    return plain_cast(value, dtype)


def _wraps(source: DType, target: DType) -> bool:
    """Whether a direct conversion may differ from one in steps, for values the target cannot hold."""
    return source.is_float and not target.is_float and target is not DType.bool
