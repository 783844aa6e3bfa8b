"""What elementary functions are made of: polynomials, powers of two, limits."""

from __future__ import annotations

import halide as hl

from polyfuse_halide.library.arithmetic import Value, bits_of, from_bits, is_nan, number

__all__ = ["INF", "NAN", "clamped", "finite", "is_wide", "nearest", "poly", "scaled", "single"]

INF, NAN = float("inf"), float("nan")


def single(value: float) -> Value:
    return hl.f32(value)


def is_wide(a: Value) -> bool:
    return bool(a.type().bits() == 64)


def _pairs(x: Value, c: list[Value]) -> Value:
    """A polynomial by halves: few operations wait for each other."""
    if len(c) == 1:
        return c[0]
    if len(c) == 2:
        return x * c[1] + c[0]
    if len(c) == 3:
        return (x * x) * c[2] + (x * c[1] + c[0])
    low = (x * x) * (x * c[3] + c[2]) + (x * c[1] + c[0])
    if len(c) == 4:
        return low
    square = x * x
    return (square * square) * _pairs(x, c[4:]) + low


def poly(x: Value, *coefficients: float) -> Value:
    return _pairs(x, [number(x, c) for c in coefficients])


def clamped(x: Value, low: float, high: float) -> Value:
    """NaN stays NaN."""
    bottom, top = number(x, low), number(x, high)
    x = hl.select(x < bottom, bottom, x)
    return hl.select(x > top, top, x)


def nearest(x: Value) -> tuple[Value, Value]:
    """The nearest whole number of a small number, as it is and as an integer."""
    magic = single(12582912.0)
    shifted = x + magic
    return shifted - magic, bits_of(shifted) - bits_of(magic)


def scaled(p: Value, n: Value) -> Value:
    """p * 2**n with one rounding."""
    half = n >> hl.i32(1)
    bias, place = hl.i32(127), hl.i32(23)
    kind = hl.Float(32)
    return p * from_bits(kind, (half + bias) << place) * from_bits(kind, (n - half + bias) << place)


def finite(x: Value) -> Value:
    """x with 0 in place of NaN: what is converted to an integer on the way must be a number."""
    return hl.select(is_nan(x), single(0.0), x)
