"""Roots, hyperbolic functions, inverses of trigonometric ones: polynomials for f32, the C library's for f64.

Halide's own call the C library for each lane in either type.
"""

from __future__ import annotations

import halide as hl

from polyfuse_halide.library.contraction import elementary, multiply_add
from polyfuse_halide.library.math.arithmetic import (
    Value,
    absolute,
    bits_of,
    copysign,
    equal,
    is_nan,
    negate,
    number,
)
from polyfuse_halide.library.math.exponentials import exp, exp_core, exp_mid, exp_reduce, log, log1p
from polyfuse_halide.library.math.polynomials import INF, NAN, clamped, finite, is_wide, poly, scaled, single

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "cosh",
    "floor",
    "rsqrt",
    "sigmoid",
    "sinh",
    "square_root",
    "tanh",
    "trunc",
]


def square_root(x: Value) -> Value:
    """The square root."""
    return hl.sqrt(x)


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x)."""
    return number(x, 1) / hl.sqrt(x)


@elementary
def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x))."""
    one = number(x, 1)
    return one / (one + exp(negate(x)))


@elementary
def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    if is_wide(x):
        return hl.tanh(x)
    a, t, one = absolute(x), x * x, single(1.0)
    p = poly(t, -0.333332628, 0.133309022, -0.0536930896, 0.0204835683, -0.00552879972)
    small = multiply_add(p * t, x, x)
    big = one - single(2.0) / (exp_mid(clamped(a + a, 0.0, 40.0)) + one)
    return copysign(hl.select(is_nan(x), a, hl.select(a < single(0.65), small, big)), x)


def _half_exp(x: Value) -> Value:
    """exp(x) / 2 without early overflow."""
    top = single(91.0)
    r, _, n = exp_reduce(hl.select(finite(x) > top, top, finite(x)))
    return scaled(exp_core(r), n - hl.i32(1))


@elementary
def sinh(x: Value) -> Value:
    """The hyperbolic sine."""
    if is_wide(x):
        return hl.sinh(x)
    a, t = absolute(x), x * x
    e = _half_exp(a)
    q = poly(t, 0.166666672, 0.00833335053, 0.000198361391, 2.81707389e-06)
    found = hl.select(a < single(1.0), multiply_add(q * t, x, x), e - single(0.25) / e)
    return copysign(hl.select(is_nan(x), a, found), x)


@elementary
def cosh(x: Value) -> Value:
    """The hyperbolic cosine."""
    if is_wide(x):
        return hl.cosh(x)
    e = _half_exp(absolute(x))
    return hl.select(is_nan(x), x, e + single(0.25) / e)


@elementary
def asinh(x: Value) -> Value:
    """The inverse of sinh."""
    if is_wide(x):
        return hl.asinh(x)
    a, one, far = absolute(x), single(1.0), single(1.0e9)
    c = hl.select(a > far, one, a)
    s = c * c
    y = log1p(c + s / (one + hl.sqrt(s + one)))
    return copysign(hl.select(a > far, log(a) + single(0.693147182), hl.select(is_nan(x), x, y)), x)


@elementary
def acosh(x: Value) -> Value:
    """The inverse of cosh."""
    if is_wide(x):
        return hl.acosh(x)
    one, far = single(1.0), single(1.0e9)
    t = hl.select(x > far, single(2.0), x) - one
    y = log1p(t + hl.sqrt(t * (t + single(2.0))))
    y = hl.select(x > far, log(x) + single(0.693147182), y)
    return hl.select(x < one, single(NAN), y)


@elementary
def atanh(x: Value) -> Value:
    """The inverse of tanh."""
    if is_wide(x):
        return hl.atanh(x)
    a, one = absolute(x), single(1.0)
    y = log1p((a + a) / (one - a)) * single(0.5)
    y = hl.select(a > one, single(NAN), y)
    return copysign(hl.select(equal(x, single(0.0)), a, y), x)


def floor(x: Value) -> Value:
    """The next integer below."""
    return hl.floor(x)


def ceil(x: Value) -> Value:
    """The next integer above."""
    return hl.ceil(x)


def trunc(x: Value) -> Value:
    """The whole part."""
    return hl.trunc(x)


_HALF_PI, _HALF_PI_LOW = 1.57079637, -4.37113883e-8
_PI, _PI_LOW = 3.14159274, -8.74227766e-8


def _atan_core(r: Value) -> Value:
    t = r * r
    q = poly(
        t,
        *(-0.333333254, 0.199996665, -0.142797738, 0.110577896, -0.0880930498, 0.0673717856, -0.0446229056),
        *(0.0224788357, -0.00728736306, 0.00110730063),
    )
    return multiply_add(r * t, q, r)


@elementary
def atan(x: Value) -> Value:
    """The inverse of tan."""
    if is_wide(x):
        return hl.atan(x)
    a, one = absolute(x), single(1.0)
    y = _atan_core(hl.select(a > one, one / a, a))
    y = hl.select(a > one, (single(_HALF_PI) - y) + single(_HALF_PI_LOW), y)
    return copysign(hl.select(is_nan(x), a, y), x)


def atan2(y: Value, x: Value) -> Value:
    """The angle of (x, y)."""
    if is_wide(x):
        return hl.atan2(y, x)
    high, ay, ax = single(INF), absolute(y), absolute(x)
    steep = ay > ax
    hi, lo = hl.select(steep, ay, ax), hl.select(steep, ax, ay)
    q = hl.select(equal(hi, single(0.0)), single(0.0), lo / hi)
    q = hl.select(equal(lo, high), single(1.0), q)
    r = _atan_core(q)
    r = hl.select(steep, (single(_HALF_PI) - r) + single(_HALF_PI_LOW), r)
    r = hl.select(bits_of(x) < hl.i32(0), (single(_PI) - r) + single(_PI_LOW), r)
    return copysign(hl.select(is_nan(y), ay, hl.select(is_nan(x), ax, r)), y)


def _asin_core(r: Value) -> Value:
    t = r * r
    q = poly(t, 0.166666597, 0.075005047, 0.0445167981, 0.0318092778, 0.014431824, 0.0375271216)
    return multiply_add(r * t, q, r)


@elementary
def asin(x: Value) -> Value:
    """The inverse of sin."""
    if is_wide(x):
        return hl.asin(x)
    a, half = absolute(x), single(0.5)
    s = hl.sqrt((single(1.0) - a) * half)
    y = _asin_core(hl.select(a > half, s, a))
    big = (single(_HALF_PI) - (y + y)) + single(_HALF_PI_LOW)
    return copysign(hl.select(a > half, big, y), x)


@elementary
def acos(x: Value) -> Value:
    """The inverse of cos."""
    if is_wide(x):
        return hl.acos(x)
    a, half = absolute(x), single(0.5)
    s = hl.sqrt((single(1.0) - a) * half)
    y = _asin_core(hl.select(a > half, s, x))
    two = y + y
    far = hl.select(x < single(0.0), (single(_PI) - two) + single(_PI_LOW), two)
    near = (single(_HALF_PI) - y) + single(_HALF_PI_LOW)
    return hl.select(a > half, far, near)
