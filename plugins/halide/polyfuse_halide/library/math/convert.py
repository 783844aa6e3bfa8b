"""Types in memory, and conversions as torch makes them.

Floating-point numbers of 16 and 8 bits are in memory as their bits. What is computed with is f32, as
everywhere in the representation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import halide as hl

from polyfuse_halide.library.math.arithmetic import Value, constant_of, narrowed, not_equal, number

__all__ = ["STORED", "bitcast", "constant", "convert", "memory_type", "value_type", "widened"]

_TYPES: dict[str, Any] = {
    "f32": hl.Float(32),
    "f64": hl.Float(64),
    "bf16": hl.UInt(16),
    "f16": hl.UInt(16),
    **dict.fromkeys(("f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "f8e4m3_nan"), hl.UInt(8)),
    "bool": hl.Bool(),
    **{f"i{bits}": hl.Int(bits) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": hl.UInt(bits) for bits in (8, 16, 32, 64)},
}
_EIGHT: Mapping[str, tuple[int, int]] = {
    "f8e4m3": (3, 7),
    "f8e5m2": (2, 15),
    "f8e4m3fnuz": (3, 8),
    "f8e5m2fnuz": (2, 16),
    "f8e4m3_nan": (3, 7),
}
"""Floating-point types of 8 bits: bits of the fraction, and the bias of the exponent. The last one is the
first, where what is too large becomes NaN."""
STORED = ("bf16", "f16", *_EIGHT)
"""Floating-point types that exist in memory alone."""


def value_type(dtype: str) -> Any:
    """Halide's type of a value; those of floating-point numbers of 16 and 8 bits are bits."""
    return _TYPES[dtype]


memory_type = value_type


def constant(value: float, dtype: str) -> Value:
    """A constant; one of 16 or 8 bits is converted from f32."""
    if dtype in STORED:
        return convert(hl.f32(float(value)), "f32", dtype)
    return constant_of(_TYPES[dtype], value)


_NO_NUMBER = 0x7F800000
"""The exponent of infinities and NaN in f32. Those of f16 are converted by their bits: Halide lets LLVM
convert between f16 and f32 as if there were none, strict or not, which drops questions and choices around."""


def widened(a: Value, source: str) -> Value:
    """The f32 number that 16 or 8 bits stand for."""
    if source in _EIGHT:
        return _eight_widened(a, source)
    if source == "bf16":
        return hl.reinterpret(hl.Float(32), hl.cast(hl.UInt(32), a) << hl.cast(hl.UInt(32), 16))
    found = _bits_of(hl.cast(hl.Float(32), hl.reinterpret(hl.Float(16), a)))
    code = hl.cast(hl.UInt(32), a)
    special = ((code & _u32(0x8000)) << _u32(16)) | _u32(_NO_NUMBER) | ((code & _u32(0x3FF)) << _u32(13))
    return _as_f32(hl.select((code & _u32(0x7C00)) == _u32(0x7C00), special, found))


def _u32(number: int) -> Value:
    return hl.cast(hl.UInt(32), number)


def _bits_of(number: Value) -> Value:
    return hl.reinterpret(hl.UInt(32), number)


def _as_f32(bits: Value) -> Value:
    return hl.reinterpret(hl.Float(32), bits)


def _eight_widened(a: Value, source: str) -> Value:
    fraction, bias = _EIGHT[source]
    code = hl.cast(hl.UInt(32), a)
    body = (code & _u32(0x7F)) << _u32(23 - fraction)
    # denormal: the fraction below the smallest normal number, without the hidden one
    least = _u32((128 - bias) << 23)
    tiny = _bits_of(_as_f32(body + least) - _as_f32(least))
    found = hl.select(body < _u32(1 << 23), tiny, body + _u32((127 - bias) << 23))
    if source == "f8e4m3":
        found = hl.select(body == _u32(0x7F << 20), _u32(0x7FF00000), found)
    if source == "f8e5m2":
        found = hl.select(body >= _u32(0x7C << 21), body + _u32((255 - 31) << 23), found)
    found = found | ((code & _u32(0x80)) << _u32(24))
    if source.endswith("fnuz"):
        found = hl.select(code == _u32(0x80), _u32(0x7FC00000), found)
    return _as_f32(found)


def _eight_narrowed(a: Value, target: str) -> Value:
    """Rounded to nearest even, as torch does it."""
    fraction, bias = _EIGHT[target]
    cut = _u32(23 - fraction)
    bits = _bits_of(a)
    sign, size = (bits >> _u32(24)) & _u32(0x80), bits & _u32(0x7FFFFFFF)
    half = _u32((1 << (22 - fraction)) - 1) + ((size >> cut) & _u32(1))
    normal = (size - _u32((127 - bias) << 23) + half) >> cut
    # below the smallest normal number: a sum with a number whose last bit is that of the result rounds there
    last = _u32((127 + 1 - bias - fraction + 23) << 23)
    tiny = _bits_of(_as_f32(size) + _as_f32(last)) - last
    found = hl.select(size < _u32((128 - bias) << 23), tiny, normal)
    if target.endswith("fnuz"):
        signed = hl.select(found == _u32(0), found, found | sign)
        return hl.cast(hl.UInt(8), hl.select(found > _u32(0x7F), _u32(0x80), signed))
    most = _u32({"f8e5m2": 0x7C, "f8e4m3": 0x7E}.get(target, 0x7F))
    found = hl.select(size > _u32(0x7F800000), _u32(0x7F), hl.select(found > most, most, found))
    return hl.cast(hl.UInt(8), found | sign)


def _narrowed(a: Value, target: str) -> Value:
    if target in _EIGHT:
        return _eight_narrowed(a, target)
    if target == "f16":
        bits, u16 = _bits_of(a), hl.UInt(16)
        quiet = hl.select((bits & _u32(0x7FFFFF)) == _u32(0), _u32(0x7C00), _u32(0x7E00))
        special = hl.cast(u16, ((bits >> _u32(16)) & _u32(0x8000)) | quiet)
        found = hl.reinterpret(u16, hl.cast(hl.Float(16), a))
        return hl.select((bits & _u32(_NO_NUMBER)) == _u32(_NO_NUMBER), special, found)
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
    if source in STORED:
        return convert(widened(a, source), "f32", target)
    if target in STORED:
        return _narrowed(convert(a, source, "f32"), target)
    kind = _TYPES[target]
    if (source, target) == ("f64", "f32"):
        return narrowed(a, kind)
    if target == "bool":
        return not_equal(a, number(a, 0))
    if source == "bool":
        return hl.select(a, constant_of(kind, 1), constant_of(kind, 0))
    if source in ("f32", "f64") and target != "u64" and not kind.is_float():
        # through a wider integer, so that what does not fit wraps
        wide = hl.Int(32) if kind.bits() < 32 else hl.Int(64) if target == "u32" else kind
        return hl.cast(kind, _truncated(a, wide))
    return hl.cast(kind, a)


def _truncated(a: Value, kind: Any) -> Value:
    """A floating-point number as a signed integer.

    By its magnitude where it is negative: Halide makes one conversion of two that follow each other, and a
    negative number that is converted to an unsigned one at once is lost (as in sums, which wrap).
    """
    zero = number(a, 0)
    return hl.select(a < zero, constant_of(kind, 0) - hl.cast(kind, zero - a), hl.cast(kind, a))


def bitcast(a: Value, source: str, target: str) -> Value:
    """The bits of a value as another type of the same width."""
    return a if _TYPES[source] == _TYPES[target] else hl.reinterpret(_TYPES[target], a)
