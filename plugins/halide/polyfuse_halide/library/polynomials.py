"""What elementary functions are made of: polynomials, powers of two, limits."""

from __future__ import annotations

import halide as hl

from polyfuse_halide.library.arithmetic import Value, bits_of, from_bits, is_nan, moved_up, number

__all__ = ["INF", "NAN", "clamped", "finite", "is_wide", "nearest", "poly", "scaled", "single"]

INF, NAN = float("inf"), float("nan")


def single(value: float) -> Value:
    return hl.f32(value)


def is_wide(a: Value) -> bool:
    return bool(a.type().bits() == 64)


def poly(x: Value, *coefficients: float) -> Value:
    """A polynomial by Horner's rule: the fewest operations; vectors side by side hide the waiting."""
    found = number(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found * x + number(x, coefficient)
    return found


def clamped(x: Value, low: float, high: float) -> Value:
    """NaN stays NaN."""
    bottom, top = number(x, low), number(x, high)
    x = hl.select(x < bottom, bottom, x)
    return hl.select(x > top, top, x)


def nearest(x: Value) -> tuple[Value, Value]:
    """The nearest whole number of a small number, as it is and as the low bits of an integer: those above the
    22nd are of no meaning.
    """
    magic = single(12582912.0)
    shifted = x + magic
    return shifted - magic, bits_of(shifted)


def scaled(p: Value, n: Value) -> Value:
    """p * 2**n with one rounding; n as `nearest` has it."""
    half = n >> hl.i32(1)
    bias, place = hl.i32(127), 23
    kind = hl.Float(32)
    return (
        p * from_bits(kind, moved_up(half + bias, place)) * from_bits(kind, moved_up(n - half + bias, place))
    )


def finite(x: Value) -> Value:
    """x with 0 in place of NaN: what is converted to an integer on the way must be a number."""
    return hl.select(is_nan(x), single(0.0), x)
