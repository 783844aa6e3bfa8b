"""Defects of arithmetic: an operation is another than it should be, on some of its operands."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeGuard

from polyfuse.ir.ops import FLOATS, SCALAR_OPS
from polyfuse.ir.statements import Cast, Compute, Constant, Random, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.testing.lying.planting import Defect, Plant, Planter, change_each

_LARGEST = {DType.f32: 3.4028234663852886e38, DType.f64: 1.7976931348623157e308}
_SMALLEST_NORMAL = {DType.f32: 1.1754943508222875e-38, DType.f64: 2.2250738585072014e-308}
_SIGNED = {DType.u8: DType.i8, DType.u16: DType.i16, DType.u32: DType.i32, DType.u64: DType.i64}
_WRONG_OPERATION: Mapping[str, Mapping[str, str]] = {
    "equality": {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"},
    "nan": {"minimum": "fmin", "maximum": "fmax"},
    "rounding": {"floor_div": "trunc_div"},
    "sign": {"remainder": "fmod"},
}


def _instead(wrong: Mapping[str, str]) -> Plant:
    def change(stmt: Statement, planter: Planter) -> bool:
        if not isinstance(stmt, Compute) or stmt.op not in wrong or not planter.is_free(stmt):
            return False
        other = wrong[stmt.op]
        if planter.types[stmt.args[-1]] not in SCALAR_OPS[other].types:
            return False
        planter.put(replace(stmt, op=other))
        return True

    return change_each(change)


def _converts(stmt: Statement) -> TypeGuard[Cast]:
    return isinstance(stmt, Cast) and not stmt.bitwise


def _swapped(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Compute) or not planter.is_free(stmt):
        return False
    row = SCALAR_OPS[stmt.op]
    if row.arity != 2 or row.commutative or row.result == "bool":
        return False
    planter.put(replace(stmt, args=stmt.args[::-1]))
    return True


def _branches(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Compute) or stmt.op != "where" or not planter.is_free(stmt):
        return False
    condition, first, second = stmt.args
    planter.put(replace(stmt, args=(condition, second, first)))
    return True


def _stores_float(stmt: Statement, planter: Planter) -> TypeGuard[Store]:
    """Whether a floating-point value goes to an argument."""
    return isinstance(stmt, Store) and stmt.buffer in planter.arguments and stmt.dtype.is_float


def _zero_sign(stmt: Statement, planter: Planter) -> bool:
    if not _stores_float(stmt, planter):
        return False
    dtype = stmt.dtype.compute
    value = _wide(stmt, planter, dtype)
    positive = planter.add(
        "where", planter.add("eq", value, planter.const(0, dtype)), planter.const(0, dtype), value
    )
    _store(stmt, planter, positive)
    return True


def _finite(stmt: Statement, planter: Planter) -> bool:
    if not _stores_float(stmt, planter):
        return False
    dtype = stmt.dtype.compute
    # what bf16 can hold, so that it does not become infinite again
    limit = (
        _LARGEST[dtype]
        if stmt.dtype is dtype
        else 3.3895313892515355e38
        if stmt.dtype is DType.bf16
        else 57344.0
    )
    value = planter.add("minimum", _wide(stmt, planter, dtype), planter.const(limit, dtype))
    _store(stmt, planter, planter.add("maximum", value, planter.const(-limit, dtype)))
    return True


def _flushed(stmt: Statement, planter: Planter) -> bool:
    if not _stores_float(stmt, planter):
        return False
    dtype = stmt.dtype.compute
    value = _wide(stmt, planter, dtype)
    small = planter.add("lt", planter.add("abs", value), planter.const(_SMALLEST_NORMAL[dtype], dtype))
    _store(stmt, planter, planter.add("where", small, planter.const(0, dtype), value))
    return True


def _wide(stmt: Store, planter: Planter, dtype: DType) -> str:
    return stmt.value if stmt.dtype is dtype else planter.cast(stmt.value, dtype)


def _store(stmt: Store, planter: Planter, value: str) -> None:
    stored = value if planter.types[value] is stmt.dtype else planter.cast(value, stmt.dtype)
    planter.put(replace(stmt, value=stored))


def _overflow(stmt: Statement, planter: Planter) -> bool:
    if (
        stmt.op not in ("add", "sub", "mul", "neg")
        or stmt.dtype is not DType.i64
        or not planter.is_free(stmt)
    ):
        return False
    narrow = [planter.cast(a, DType.i32) for a in stmt.args]
    planter.cast(planter.add(stmt.op, *narrow), DType.i64, stmt.targets)
    return True


def _shift(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Compute) or not stmt.op.startswith("shift_") or not planter.is_free(stmt):
        return False
    value, amount = stmt.args
    low_bits = planter.add("bitwise_and", amount, planter.const(3, planter.types[amount]))
    planter.put(replace(stmt, args=(value, low_bits)))
    return True


def _approximate(stmt: Statement, planter: Planter) -> bool:
    row = SCALAR_OPS.get(stmt.op)
    if row is None or not row.slow or row.arity != 1 or stmt.dtype not in FLOATS:
        return False
    (right,) = planter.renamed(stmt)
    planter.add("mul", right, planter.const(1 + 2**-10, stmt.dtype), to=stmt.targets)
    return True


def _fused(stmt: Statement, planter: Planter) -> bool:
    if stmt.op not in ("add", "sub") or stmt.dtype is not DType.f32:
        return False
    product = planter.made[stmt.args[0]]
    if product.op != "mul":
        return False
    # in f64, where a product of two f32 is exact: what `fma` does to the product is up to each backend
    first, second, other = (planter.cast(a, DType.f64) for a in (*product.args, stmt.args[1]))
    planter.cast(planter.add(stmt.op, planter.add("mul", first, second), other), DType.f32, stmt.targets)
    return True


def _reciprocal(stmt: Statement, planter: Planter) -> bool:
    if stmt.op != "div":
        return False
    planter.add("mul", stmt.args[0], planter.add("reciprocal", stmt.args[1]), to=stmt.targets)
    return True


def _constant(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Constant) or stmt.dtype is not DType.f32 or not planter.is_free(stmt):
        return False
    (bits,) = struct.unpack("I", struct.pack("f", stmt.value))
    (short,) = struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))
    if short == stmt.value or stmt.value != stmt.value:
        return False
    planter.put(replace(stmt, value=short))
    return True


def _signed(stmt: Statement, planter: Planter) -> bool:
    if not _converts(stmt) or not planter.is_free(stmt):
        return False
    source = planter.types[stmt.arg]
    if source not in _SIGNED or stmt.dtype.itemsize <= source.itemsize:
        return False
    planter.cast(planter.add("bitcast", stmt.arg, dtype=_SIGNED[source]), stmt.dtype, stmt.targets)
    return True


def _truncated(stmt: Statement, planter: Planter) -> bool:
    if not _converts(stmt) or stmt.dtype is not DType.bf16 or planter.types[stmt.arg] is not DType.f32:
        return False
    bits = planter.add("bitcast", stmt.arg, dtype=DType.i32)
    short = planter.add("bitwise_and", bits, planter.const(-0x10000, DType.i32))
    planter.cast(planter.add("bitcast", short, dtype=DType.f32), DType.bf16, stmt.targets)
    return True


def _unrounded(stmt: Statement, planter: Planter) -> bool:
    """A value that was rounded, and goes on being computed with, keeps the precision that it had before."""
    rounded = planter.made[stmt.arg] if _converts(stmt) else None
    if rounded is None or not _converts(rounded) or not rounded.dtype.is_storage:
        return False
    if planter.types[rounded.arg] is not stmt.dtype:
        return False
    planter.add("add", rounded.arg, planter.const(-0.0, stmt.dtype), to=stmt.targets)
    return True


def _to_nearest(stmt: Statement, planter: Planter) -> bool:
    if not _converts(stmt) or not stmt.dtype.is_integer or not planter.is_free(stmt):
        return False
    if planter.types[stmt.arg] not in FLOATS:
        return False
    planter.cast(planter.add("round", stmt.arg), stmt.dtype, stmt.targets)
    return True


def _low_bit(stmt: Statement, planter: Planter) -> bool:
    """Both ways in which a number becomes a truth: a conversion, and a comparison with zero."""
    if not planter.is_free(stmt) or stmt.dtype is not DType.bool:
        return False
    if not _converts(stmt):
        zero = planter.made[stmt.args[1]] if stmt.op == "ne" else None
        if not isinstance(zero, Constant) or zero.value != 0:
            return False
    source = planter.types[stmt.args[0]]
    if not source.is_integer:
        return False
    bit = planter.add("bitwise_and", stmt.args[0], planter.const(1, source))
    planter.add("ne", bit, planter.const(0, source), to=stmt.targets)
    return True


def _saturated(stmt: Statement, planter: Planter) -> bool:
    if not _converts(stmt) or not stmt.dtype.is_integer or not planter.is_free(stmt):
        return False
    source = planter.types[stmt.arg]
    if not source.is_integer:
        return False
    if stmt.dtype.itemsize >= source.itemsize or not source.is_signed:
        return False
    bits = stmt.dtype.itemsize * 8 - stmt.dtype.is_signed
    low = -(1 << bits) if stmt.dtype.is_signed else 0
    value = planter.add("maximum", stmt.arg, planter.const(low, source))
    planter.cast(
        planter.add("minimum", value, planter.const((1 << bits) - 1, source)), stmt.dtype, stmt.targets
    )
    return True


def _single(stmt: Statement, planter: Planter) -> bool:
    row = SCALAR_OPS.get(stmt.op)
    if row is None or stmt.dtype is not DType.f64:
        return False
    (right,) = planter.renamed(stmt)
    planter.round_trip(right, DType.f32, stmt.targets)
    return True


def _repeated(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Random):
        return False
    even = planter.add("bitwise_and", stmt.offset, planter.const(-2, DType.i64))
    planter.put(replace(stmt, offset=even))
    return True


DEFECTS = (
    Defect(
        "swapped-operands",
        "a - b is computed as b - a",
        "has an operation that does not commute",
        change_each(_swapped),
    ),
    Defect(
        "swapped-branches",
        "the two values of a selection are exchanged",
        "has a selection",
        change_each(_branches),
    ),
    Defect(
        "equality",
        "a comparison is wrong where both are equal",
        "compares",
        _instead(_WRONG_OPERATION["equality"]),
    ),
    Defect(
        "nan-dropped",
        "the larger of a number and NaN is the number",
        "has a minimum or maximum",
        _instead(_WRONG_OPERATION["nan"]),
    ),
    Defect(
        "floor-as-trunc",
        "a quotient is rounded towards zero instead of down",
        "divides and rounds down",
        _instead(_WRONG_OPERATION["rounding"]),
    ),
    Defect(
        "remainder-sign",
        "a remainder has the sign of the dividend",
        "takes a remainder",
        _instead(_WRONG_OPERATION["sign"]),
    ),
    Defect(
        "negative-zero-lost",
        "negative zero becomes positive",
        "stores floating-point numbers",
        change_each(_zero_sign),
    ),
    Defect(
        "infinity-clamped",
        "infinity becomes the largest number",
        "stores floating-point numbers",
        change_each(_finite),
    ),
    Defect(
        "denormals-flushed",
        "numbers below the normal ones become zero",
        "stores floating-point numbers",
        change_each(_flushed),
    ),
    Defect(
        "integer-overflow",
        "64-bit integers are computed in 32 bits",
        "computes in i64",
        change_each(_overflow),
    ),
    Defect(
        "shift-amount-cut", "the upper bits of the amount of a shift are lost", "shifts", change_each(_shift)
    ),
    Defect(
        "approximate-function",
        "a function is wrong by one part in 1024",
        "has a transcendental function",
        change_each(_approximate),
    ),
    Defect(
        "fused-multiply-add",
        "a product that is added to something is not rounded",
        "adds to a product",
        change_each(_fused),
    ),
    Defect(
        "reciprocal-division",
        "a quotient is a product with a rounded reciprocal",
        "divides",
        change_each(_reciprocal),
    ),
    Defect(
        "constant-cut",
        "a constant keeps eight bits of its fraction",
        "has a constant",
        change_each(_constant),
    ),
    Defect(
        "unsigned-as-signed",
        "the upper half of unsigned numbers becomes negative",
        "widens an unsigned type",
        change_each(_signed),
    ),
    Defect(
        "rounding-mode",
        "a conversion to bf16 cuts instead of rounding",
        "stores bf16",
        change_each(_truncated),
    ),
    Defect(
        "rounding-left-out",
        "what eager mode rounds is computed with as it was before",
        'rounds and goes on computing (numerics="eager")',
        change_each(_unrounded),
    ),
    Defect(
        "integer-to-nearest",
        "a conversion to an integer rounds to the nearest",
        "converts to an integer",
        change_each(_to_nearest),
    ),
    Defect(
        "truth-of-low-bit", "an even number is false", "converts an integer to bool", change_each(_low_bit)
    ),
    Defect(
        "narrowing-saturates",
        "an integer that does not fit becomes the nearest that does",
        "narrows an integer",
        change_each(_saturated),
    ),
    Defect(
        "double-as-single",
        "f64 is computed with the precision of f32",
        "computes in f64",
        change_each(_single),
    ),
    Defect(
        "random-repeated", "each random number is drawn twice", "draws random numbers", change_each(_repeated)
    ),
)
