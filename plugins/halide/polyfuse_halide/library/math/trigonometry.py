"""Sine, cosine and tangent in f32, of any argument.

An argument is x = n * pi/2 + r. Up to a few thousand, multiples of pi/2 are subtracted in parts. Beyond that,
what remains is a product of integers: x is m * 2**e, and of m * (2**e * 2/pi) only what is left after
taking out multiples of four matters, for which 96 bits of 2/pi from a position that depends on e suffice.
"""

from __future__ import annotations

import itertools

import halide as hl

from polyfuse_halide.library.contraction import elementary
from polyfuse_halide.library.math.arithmetic import (
    Value,
    absolute,
    bits_of,
    equal,
    from_bits,
    moved_up,
    negate,
)
from polyfuse_halide.library.math.polynomials import INF, is_wide, nearest, poly, single

__all__ = ["cos", "sin", "tan"]

_LIMIT = 4000.0
_LEAST = 138
"""The biased exponent from which an argument may be beyond the limit."""
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561
"""Bits of 2/pi behind the point."""
_LEADING = 150 - _LEAST + 2
"""Zeros before them, so that position 0 is the one of the least exponent."""
_QUARTER = 1.57079632679489662


def _word(number: int) -> Value:
    """64 bits of the number that begins with the leading zeros."""
    bits = _TWO_OVER_PI >> _LEADING
    found = bits >> (192 - 64 * number) & ((1 << 64) - 1)
    return hl.reinterpret(hl.UInt(64), hl.i64(found - (1 << 64) if found >> 63 else found))


def _near(x: Value) -> tuple[Value, Value]:
    """r and n of an argument below the limit. The products are exact; the last difference that is not keeps
    its rounding error.
    """
    whole, n = nearest(x, 0, 0.636619772)
    r = x - whole * single(1.5703125)
    r = r - whole * single(4.8351287841796875e-4)
    p = whole * single(3.13855707645416259765e-7)
    s = r - p
    return s + (((r - s) - p) - whole * single(6.07710050650619224932e-11)), n


def _far(x: Value) -> tuple[Value, Value]:
    """r and n, up to multiples of four, of an argument that is not small."""
    bits, i32, u64 = bits_of(x), hl.Int(32), hl.UInt(64)
    position = ((bits >> hl.i32(23)) & hl.i32(255)) - hl.i32(_LEAST)
    mantissa = hl.cast(u64, hl.reinterpret(hl.UInt(32), (bits & hl.i32(0x7FFFFF)) | hl.i32(0x800000)))
    later = position >= hl.i32(64)
    words = [hl.select(later, _word(k + 1), _word(k)) for k in range(3)]
    shift = hl.cast(u64, hl.reinterpret(hl.UInt(32), position & hl.i32(63)))
    one, back = hl.cast(u64, hl.i32(1)), hl.cast(u64, hl.i32(63)) - shift
    window, beyond = ((a << shift) | ((b >> one) >> back) for a, b in itertools.pairwise(words))
    by_half = hl.cast(u64, hl.i32(32))
    turns = mantissa * window + ((mantissa * (beyond >> by_half)) >> by_half)
    half = one << hl.cast(u64, hl.i32(61))
    n = hl.cast(i32, (turns + half) >> hl.cast(u64, hl.i32(62)))
    rest = hl.reinterpret(hl.Int(64), turns << hl.cast(u64, hl.i32(2)))
    high = hl.cast(i32, rest >> hl.i64(40))
    low = hl.cast(i32, rest >> hl.i64(16)) & hl.i32(0xFFFFFF)
    r = hl.cast(hl.Float(32), high) * single(_QUARTER / (1 << 24))
    r = r + hl.cast(hl.Float(32), low) * single(_QUARTER / (1 << 48))
    minus = bits < hl.i32(0)
    return hl.select(minus, negate(r), r), hl.select(minus, hl.i32(0) - n, n)


def _reduced(x: Value) -> tuple[Value, Value]:
    near, far = _near(x), _far(x)
    small = absolute(x) < single(_LIMIT)
    return hl.select(small, near[0], far[0]), hl.select(small, near[1], far[1])


def _sine(r: Value) -> Value:
    t = r * r
    return (r * t) * poly(t, -0.166666672, 0.00833332911, -0.000198393085, 2.71808449e-06) + r


def _cosine(r: Value) -> Value:
    t, one = r * r, single(1.0)
    h = t * single(0.5)
    w = one - h
    tail = (one - w) - h
    p = poly(t, 0.0416666679, -0.00138888834, 2.47995158e-05, -2.7209893e-07)
    return w + ((t * t) * p + tail)


def _checked(x: Value, found: Value) -> Value:
    """Infinities and NaN give NaN."""
    return hl.select(absolute(x) < single(INF), found, x - x)


def _wave(x: Value, shift: int) -> Value:
    r, n = _reduced(x)
    n = n + hl.i32(shift)
    found = hl.select((n & hl.i32(1)) == hl.i32(0), _sine(r), _cosine(r))
    return from_bits(hl.Float(32), bits_of(found) ^ moved_up(n & hl.i32(2), 30))


@elementary
def sin(x: Value) -> Value:
    """The sine."""
    if is_wide(x):
        return hl.sin(x)
    return _checked(x, hl.select(equal(x, single(0.0)), x, _wave(x, 0)))


@elementary
def cos(x: Value) -> Value:
    """The cosine."""
    if is_wide(x):
        return hl.cos(x)
    return _checked(x, _wave(x, 1))


@elementary
def tan(x: Value) -> Value:
    """The tangent."""
    if is_wide(x):
        return hl.tan(x)
    r, n = _reduced(x)
    t = r * r
    q = poly(
        t,
        *(0.333333492, 0.13332659, 0.0540604927, 0.0212791208, 0.0108440025, 7.88629986e-05, 0.004381679),
    )
    y = (r * t) * q + r
    y = hl.select((n & hl.i32(1)) == hl.i32(0), y, single(-1.0) / y)
    return _checked(x, hl.select(equal(x, single(0.0)), x, y))
