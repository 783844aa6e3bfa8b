"""Arithmetic, comparisons and bits with eager mode's answers at every edge.

Integers of 32 and 64 bits are added as unsigned ones, because Halide takes signed ones not to overflow.
"""

from __future__ import annotations

from typing import Any

import halide as hl

__all__ = [
    "at_each",
    "absolute",
    "add",
    "at_least",
    "at_most",
    "bit_and",
    "bit_not",
    "bit_or",
    "bit_xor",
    "copysign",
    "divide",
    "equal",
    "expr",
    "fmax",
    "fmin",
    "fused",
    "greater",
    "greater_equal",
    "is_inf",
    "is_nan",
    "less",
    "less_equal",
    "maximum",
    "minimum",
    "moved_up",
    "mul",
    "negate",
    "nextafter",
    "not_equal",
    "reciprocal",
    "round_even",
    "shift_left",
    "shift_right",
    "sign",
    "signbit",
    "sub",
    "where",
    "where_of_index",
]

Value = Any
"""An expression of Halide: its classes are untyped."""


def expr(value: Any) -> Value:
    """A variable, a number or a stage's value as an expression."""
    if isinstance(value, int):
        return hl.i32(value)
    return value if isinstance(value, hl.Expr) else hl.Expr(value)


def number(like: Value, value: float) -> Value:
    """A constant of the type of an expression."""
    return constant_of(like.type(), value)


def constant_of(kind: Any, value: float) -> Value:
    """A constant of a type."""
    if kind.is_float():
        return (hl.f32 if kind.bits() == 32 else hl.f64)(float(value))
    if kind.is_uint() and kind.bits() == 64:
        return hl.reinterpret(kind, hl.i64(_signed(int(value), 64)))
    if kind.is_bool():
        return hl.i32(int(bool(value))) == hl.i32(1)
    if kind.bits() == 64:
        return hl.i64(int(value))
    if kind.is_uint() and kind.bits() == 32:
        return hl.reinterpret(kind, hl.i32(_signed(int(value), 32)))
    return hl.cast(kind, hl.i32(int(value)))


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def bits_of(a: Value) -> Value:
    """The bits of a floating-point number as a signed integer."""
    return hl.reinterpret(hl.Int(a.type().bits()), a)


def from_bits(kind: Any, a: Value) -> Value:
    """The floating-point number with these bits."""
    return hl.reinterpret(kind, a)


def moved_up(a: Value, count: int) -> Value:
    """The bits of a signed integer moved up; those that leave it are lost.

    Halide multiplies where it is to shift signed numbers, and LLVM takes it that products never leave
    their type.
    """
    return _again(_unsigned(a) << hl.cast(hl.UInt(a.type().bits()), count), a)


def _wraps(a: Value) -> bool:
    kind = a.type()
    return bool(kind.is_int() and kind.bits() >= 32)


def _unsigned(a: Value) -> Value:
    return hl.reinterpret(hl.UInt(a.type().bits()), a)


def _again(found: Value, a: Value) -> Value:
    return hl.reinterpret(a.type(), found)


def add(a: Value, b: Value) -> Value:
    """a + b."""
    return _again(_unsigned(a) + _unsigned(b), a) if _wraps(a) else a + b


def sub(a: Value, b: Value) -> Value:
    """a - b."""
    return _again(_unsigned(a) - _unsigned(b), a) if _wraps(a) else a - b


def mul(a: Value, b: Value) -> Value:
    """a * b."""
    return _again(_unsigned(a) * _unsigned(b), a) if _wraps(a) else a * b


def fused(a: Value, b: Value, c: Value) -> Value:
    """a * b + c; the product may be rounded."""
    return a * b + c


def divide(a: Value, b: Value) -> Value:
    """a / b of floating-point numbers."""
    return a / b


def reciprocal(a: Value) -> Value:
    """1 / a."""
    return number(a, 1) / a


def negate(a: Value) -> Value:
    """-a, the sign of a zero included."""
    if a.type().is_float():
        width = a.type().bits()
        flip = hl.i64(-(1 << 63)) if width == 64 else hl.i32(-(1 << 31))
        return from_bits(a.type(), bits_of(a) ^ flip)
    return sub(number(a, 0), a)


def absolute(a: Value) -> Value:
    """|a|; the lowest integer stays as it is."""
    if a.type().is_float():
        keep = hl.i64((1 << 63) - 1) if a.type().bits() == 64 else hl.i32((1 << 31) - 1)
        return from_bits(a.type(), bits_of(a) & keep)
    return hl.select(a < number(a, 0), negate(a), a)


def sign(a: Value) -> Value:
    """-1, 0 or 1; 0 for NaN."""
    zero = number(a, 0)
    return hl.select(a > zero, number(a, 1), hl.select(a < zero, number(a, -1), zero))


def copysign(a: Value, b: Value) -> Value:
    """|a| with the sign of b.

    Choose between numbers before, not after: LLVM 21 takes the wrong operand for the mask where `b` itself
    stays in some lanes.
    """
    width = a.type().bits()
    low = hl.i64((1 << 63) - 1) if width == 64 else hl.i32((1 << 31) - 1)
    high = hl.i64(-(1 << 63)) if width == 64 else hl.i32(-(1 << 31))
    return from_bits(a.type(), (bits_of(a) & low) | (bits_of(b) & high))


def narrowed(a: Value, kind: Any) -> Value:
    """A double as `kind`, f32 or f64.

    The sum keeps this conversion and a later one to 16 bits, at whatever distance, from becoming one, which
    rounds once and calls a function that not every compiler's library has.
    """
    if kind.bits() == 64:
        return a
    narrow = hl.cast(kind, a)
    return copysign(narrow + number(narrow, 0), narrow)


def signbit(a: Value) -> Value:
    """Whether the sign is set."""
    bits = bits_of(a)
    return bits < number(bits, 0)


def is_nan(a: Value) -> Value:
    """Whether a is not a number."""
    return _magnitude(a) > _infinity(a)


def is_inf(a: Value) -> Value:
    """Whether a is infinite."""
    return _magnitude(a) == _infinity(a)


def _magnitude(a: Value) -> Value:
    """The bits of a without its sign.

    Questions are asked of bits because Halide's own walk the whole expression, once for each way to each part
    of it: of a remainder, which has deep ones, that takes for ever.
    """
    bits = bits_of(a)
    return bits & hl.cast(bits.type(), (1 << (a.type().bits() - 1)) - 1)


def _infinity(a: Value) -> Value:
    """The bits of infinity in a's type."""
    width = a.type().bits()
    return hl.cast(hl.Int(width), {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF << 52}[width])


def round_even(a: Value) -> Value:
    """To the nearest integer, ties to even; a zero keeps its sign."""
    return copysign(hl.round(a), a)


def nextafter(a: Value, b: Value) -> Value:
    """The neighbour of a towards b, by counting its bits."""
    bits = bits_of(a)
    one, zero = number(bits, 1), number(a, 0)
    lowest = hl.select(b > zero, one, number(bits, -(1 << (a.type().bits() - 1)) + 1))
    away = equal(b > a, a > zero)
    moved = hl.select(equal(a, zero), lowest, hl.select(away, add(bits, one), sub(bits, one)))
    found = from_bits(a.type(), moved)
    return hl.select(is_nan(a) | is_nan(b), a + b, hl.select(equal(a, b), b, found))


# --- comparisons and selection ------------------------------------------------------------------------------


def _is_bool(a: Value) -> bool:
    return bool(a.type().is_bool())


def equal(a: Value, b: Value) -> Value:
    """a == b."""
    return bit_not(bit_xor(a, b)) if _is_bool(a) else a == b


def not_equal(a: Value, b: Value) -> Value:
    """a != b, true for NaN."""
    if _is_bool(a):
        return bit_xor(a, b)
    return hl.logical_not(a == b)


def less(a: Value, b: Value) -> Value:
    """a < b."""
    return bit_and(bit_not(a), b) if _is_bool(a) else a < b


def less_equal(a: Value, b: Value) -> Value:
    """a <= b, false for NaN, which Halide's own comparison gets wrong."""
    if _is_bool(a):
        return bit_or(bit_not(a), b)
    return (a < b) | (a == b) if a.type().is_float() else a <= b


def greater(a: Value, b: Value) -> Value:
    """a > b."""
    return less(b, a)


def greater_equal(a: Value, b: Value) -> Value:
    """a >= b."""
    return less_equal(b, a)


def at_each(value: Value, loop: Value) -> Value:
    """A value of every point of a loop, in which the loop occurs."""
    return hl.select(expr(loop) >= 0, value, value)


def where(condition: Value, a: Value, b: Value) -> Value:
    """a where the condition holds, else b."""
    return hl.select(condition, a, b)


def where_of_index(condition: Value, a: Value, b: Value) -> Value:
    """`where`, for a condition that depends on the index alone.

    Halide 21 divides a loop of lanes by such a condition. What it finds out for the whole vectors it then
    also takes for true in the guarded tail, wherever the two have a choice between equal names in common.
    So the condition is one that its solver cannot see through; the constants of each part still fold.
    """
    hidden = hl.cast(hl.UInt(8), condition) ^ hl.cast(hl.UInt(8), 1)
    return hl.select(hidden == hl.cast(hl.UInt(8), 0), a, b)


def minimum(a: Value, b: Value) -> Value:
    """The smaller one; NaN wins."""
    if _is_bool(a):
        return bit_and(a, b)
    if a.type().is_float():
        return hl.select((a < b) | is_nan(a), a, b)
    return hl.min(a, b)


def maximum(a: Value, b: Value) -> Value:
    """The larger one; NaN wins."""
    if _is_bool(a):
        return bit_or(a, b)
    if a.type().is_float():
        return hl.select((a > b) | is_nan(a), a, b)
    return hl.max(a, b)


def at_least(a: Value, low: Value, positive_zero: bool = False) -> Value:
    """The larger of a number and a constant; NaN wins, and so does a `positive_zero` over zeros."""
    found = hl.select(low > a, low, a)
    return found + number(a, 0) if positive_zero else found


def at_most(a: Value, high: Value, positive_zero: bool = False) -> Value:
    """The smaller of a number and a constant; NaN wins, and so does a `positive_zero` over zeros."""
    found = hl.select(high < a, high, a)
    return found + number(a, 0) if positive_zero else found


def fmin(a: Value, b: Value) -> Value:
    """The smaller one, the first of equal ones, as in eager mode; a number wins over NaN."""
    return hl.select((b < a) | is_nan(a), b, a)


def fmax(a: Value, b: Value) -> Value:
    """The larger one, the first of equal ones, as in eager mode; a number wins over NaN."""
    return hl.select((b > a) | is_nan(a), b, a)


# --- bits ---------------------------------------------------------------------------------------------------


def bit_and(a: Value, b: Value) -> Value:
    """a & b."""
    return a & b


def bit_or(a: Value, b: Value) -> Value:
    """a | b."""
    return a | b


def bit_xor(a: Value, b: Value) -> Value:
    """a ^ b."""
    if _is_bool(a):
        return (a & hl.logical_not(b)) | (hl.logical_not(a) & b)
    return a ^ b


def bit_not(a: Value) -> Value:
    """Every bit inverted."""
    return hl.logical_not(a) if _is_bool(a) else ~a


def shift_left(a: Value, b: Value) -> Value:
    """A count outside the width shifts everything out."""
    bits = a.type().bits()
    count = hl.reinterpret(hl.UInt(bits), b)
    limit = constant_of(hl.UInt(bits), bits)
    inside = count < limit
    value = hl.reinterpret(hl.UInt(bits), a)
    shifted = value << hl.select(inside, count, constant_of(hl.UInt(bits), 0))
    return hl.reinterpret(a.type(), hl.select(inside, shifted, constant_of(hl.UInt(bits), 0)))


def shift_right(a: Value, b: Value) -> Value:
    """A count outside the width shifts everything out; the sign stays."""
    bits = a.type().bits()
    unsigned = hl.UInt(bits)
    count = hl.reinterpret(unsigned, b)
    inside = count < constant_of(unsigned, bits)
    if a.type().is_int():
        return a >> hl.select(inside, count, constant_of(unsigned, bits - 1))
    zero = constant_of(unsigned, 0)
    return hl.select(inside, a >> hl.select(inside, count, zero), zero)
