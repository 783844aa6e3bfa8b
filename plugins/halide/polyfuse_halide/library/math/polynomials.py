"""What elementary functions are made of: polynomials, powers of two, limits."""

from __future__ import annotations

import halide as hl

from polyfuse_halide.library.contraction import multiply_add
from polyfuse_halide.library.math.arithmetic import Value, bits_of, from_bits, is_nan, moved_up, number

__all__ = [
    "INF",
    "NAN",
    "clamped",
    "finite",
    "is_wide",
    "SCALE",
    "nearest",
    "poly",
    "power_of_two",
    "scaled",
    "single",
]

INF, NAN = float("inf"), float("nan")
SCALE = 2 * 127
"""What `nearest` adds to the exponent of `scaled`: the biases of its two factors."""


def single(value: float) -> Value:
    return hl.f32(value)


def is_wide(a: Value) -> bool:
    return bool(a.type().bits() == 64)


def poly(x: Value, *coefficients: float) -> Value:
    """A polynomial by Horner's rule: the fewest operations; vectors side by side hide the waiting."""
    found = number(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = multiply_add(found, x, number(x, coefficient))
    return found


def clamped(x: Value, low: float, high: float) -> Value:
    """NaN stays NaN."""
    bottom, top = number(x, low), number(x, high)
    x = hl.select(x < bottom, bottom, x)
    return hl.select(x > top, top, x)


def nearest(x: Value, bias: int = 0, factor: float = 1.0) -> tuple[Value, Value]:
    """The nearest integer of a small product, as it is, and plus `bias` as the low bits of an integer:
    those above the 21st are of no meaning.
    """
    magic = single(12582912.0 + bias)
    shifted = x + magic if factor == 1.0 else multiply_add(x, single(factor), magic)
    return shifted - magic, bits_of(shifted)


def scaled(p: Value, n: Value) -> Value:
    """p * 2**n with one rounding; n as `nearest` has it with the bias `SCALE`."""
    half = n >> hl.i32(1)
    return p * power_of_two(half) * power_of_two(n - half)


def power_of_two(biased: Value) -> Value:
    """2**n in f32, where the low bits are those of n + 127."""
    return from_bits(hl.Float(32), moved_up(biased, 23))


def finite(x: Value) -> Value:
    """x with 0 instead of NaN: what is converted to an integer on the way must be a number."""
    return hl.select(is_nan(x), single(0.0), x)
