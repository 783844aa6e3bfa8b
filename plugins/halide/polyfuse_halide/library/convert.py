"""Types in memory, and conversions as torch makes them.

Numbers of 16 bits are in memory as their bits. What is computed with is f32, as everywhere in the
representation.
"""

from __future__ import annotations

from typing import Any

import halide as hl

from polyfuse_halide.library.arithmetic import Value, constant_of, copysign, not_equal, number

__all__ = ["bitcast", "constant", "convert", "memory_type", "value_type", "widened"]

_TYPES: dict[str, Any] = {
    "f32": hl.Float(32),
    "f64": hl.Float(64),
    "bf16": hl.UInt(16),
    "f16": hl.UInt(16),
    "bool": hl.Bool(),
    **{f"i{bits}": hl.Int(bits) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": hl.UInt(bits) for bits in (8, 16, 32, 64)},
}
_HALVES = ("bf16", "f16")


def value_type(dtype: str) -> Any:
    """Halide's type of a value; those of 16-bit floating-point numbers are bits."""
    return _TYPES[dtype]


memory_type = value_type


def constant(value: float, dtype: str) -> Value:
    """A constant; one of 16 bits is converted from f32."""
    if dtype in _HALVES:
        return convert(hl.f32(float(value)), "f32", dtype)
    return constant_of(_TYPES[dtype], value)


def widened(a: Value, source: str) -> Value:
    """The f32 number that 16 bits stand for."""
    if source == "bf16":
        return hl.reinterpret(hl.Float(32), hl.cast(hl.UInt(32), a) << hl.cast(hl.UInt(32), 16))
    return hl.cast(hl.Float(32), hl.reinterpret(hl.Float(16), a))


def _narrowed(a: Value, target: str) -> Value:
    if target == "f16":
        return hl.reinterpret(hl.UInt(16), hl.cast(hl.Float(16), a))
    u32 = hl.UInt(32)
    bits = hl.reinterpret(u32, a)
    sixteen, one = hl.cast(u32, 16), hl.cast(u32, 1)
    rounded = (bits + hl.cast(u32, 0x7FFF) + ((bits >> sixteen) & one)) >> sixteen
    # by its bits: Halide's own question walks the whole expression, once for each way to each part of it
    is_nan = (bits & hl.cast(u32, 0x7FFFFFFF)) > hl.cast(u32, 0x7F800000)
    return hl.cast(hl.UInt(16), hl.select(is_nan, hl.cast(u32, 0x7FC0), rounded))


def convert(a: Value, source: str, target: str) -> Value:
    """A value converted to another type."""
    if source == target:
        return a
    if source in _HALVES:
        return convert(widened(a, source), "f32", target)
    if target in _HALVES:
        narrow = convert(a, source, "f32")
        if source == "f64":
            # the sum keeps two casts from becoming one, which rounds once and calls the compiler's library
            narrow = copysign(narrow + number(narrow, 0), narrow)
        return _narrowed(narrow, target)
    kind = _TYPES[target]
    if target == "bool":
        return not_equal(a, number(a, 0))
    if source == "bool":
        return hl.select(a, constant_of(kind, 1), constant_of(kind, 0))
    if source in ("f32", "f64") and target != "u64" and not kind.is_float():
        # through a wider whole number, so that what does not fit wraps
        wide = hl.Int(32) if kind.bits() < 32 else hl.Int(64) if target == "u32" else kind
        return hl.cast(kind, _truncated(a, wide))
    return hl.cast(kind, a)


def _truncated(a: Value, kind: Any) -> Value:
    """A floating-point number as a signed whole number.

    By its magnitude where it is negative: Halide makes one conversion of two that follow each other, and a
    negative number that is converted to an unsigned one at once is lost (as in sums, which wrap).
    """
    zero = number(a, 0)
    return hl.select(a < zero, constant_of(kind, 0) - hl.cast(kind, zero - a), hl.cast(kind, a))


def bitcast(a: Value, source: str, target: str) -> Value:
    """The bits of a value as another type of the same width."""
    return a if _TYPES[source] == _TYPES[target] else hl.reinterpret(_TYPES[target], a)
