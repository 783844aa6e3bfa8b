"""Exponentials and logarithms: polynomials for f32, the C library's for f64.

Halide's own are wrong at infinities and for NaN.
"""

from __future__ import annotations

import math

import halide as hl

from polyfuse_halide.library.contraction import elementary, multiply_add
from polyfuse_halide.library.math.arithmetic import (
    Value,
    absolute,
    bits_of,
    equal,
    from_bits,
    is_nan,
    number,
)
from polyfuse_halide.library.math.polynomials import (
    INF,
    NAN,
    SCALE,
    clamped,
    finite,
    is_wide,
    nearest,
    poly,
    power_of_two,
    scaled,
    single,
)

__all__ = [
    "exp",
    "exp2",
    "exp_core",
    "exp_less",
    "exp_mid",
    "exp_reduce",
    "exp_in_softmax",
    "exp_tail",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
]


def exp_tail(r: Value) -> Value:
    return poly(r, 0.49999994, 0.166665196, 0.0416683927, 0.00836878084, 0.00138144684)


def exp_less(r: Value) -> Value:
    """e**r - 1 of what is left of a number."""
    return multiply_add(r * r, exp_tail(r), r)


def exp_core(r: Value) -> Value:
    return exp_less(r) + single(1.0)


def _within(x: Value, low: float, high: float) -> tuple[Value, Value]:
    """A number up to a limit, and whether its power is zero. Where it is, zero stands in for the number:
    numbers below the smallest normal one, through which the way to zero leads, slow CPUs down, and
    masks of attention are full of powers of minus infinity.
    """
    vanishes = x < single(low)
    c = hl.select(vanishes, single(0.0), x)
    return hl.select(c > single(high), single(high), c), vanishes


def exp_reduce(c: Value, bias: int = SCALE) -> tuple[Value, Value, Value]:
    """What is left of c beside multiples of log(2), how many there are, and that plus `bias` as low bits."""
    whole, n = nearest(c, bias, 1.44269504)
    r = multiply_add(whole, single(-0.693359375), c)
    return whole * single(2.12194440e-4) + r, whole, n


@elementary
def exp(x: Value) -> Value:
    """e**x. NaN goes through: whatever its exponent becomes, a product with it is NaN."""
    if is_wide(x):
        return hl.exp(x)
    c, vanishes = _within(x, -104.0, 89.0)
    r, _, n = exp_reduce(c)
    return hl.select(vanishes, single(0.0), scaled(exp_core(r), n))


def exp_mid(x: Value) -> Value:
    """exp within [-80, 80]."""
    r, _, n = exp_reduce(x, 127)
    return exp_core(r) * power_of_two(n)


@elementary
def exp_in_softmax(x: Value) -> Value:
    """e**x of what is not above zero, for a sum in which something is one: the error may grow with the
    distance from zero, and what is tiny beside one may be anything tiny. NaN goes through.
    """
    if is_wide(x):
        return hl.exp(x)
    t, least = x * single(1.44269504), single(-126.0)
    t = hl.select(t < least, least, t)
    whole, n = nearest(t, 127)
    p = poly(t - whole, 1.0, 0.6931471806, 0.2402234904, 0.05550381014, 0.009666368515, 0.001338130254)
    return p * power_of_two(n)


@elementary
def exp2(x: Value) -> Value:
    """2**x."""
    if is_wide(x):
        return hl.pow(hl.f64(2.0), x)
    c, vanishes = _within(x, -150.0, 129.0)
    whole, n = nearest(c, SCALE)
    found = scaled(exp_core((c - whole) * single(0.693147182)), n)
    return hl.select(vanishes, single(0.0), found)


@elementary
def expm1(x: Value) -> Value:
    """e**x - 1."""
    if is_wide(x):
        return _expm1_f64(x)
    r, whole, n = exp_reduce(clamped(finite(x), -20.0, 89.0), 126)
    p = exp_less(r)
    s = power_of_two(n)
    y = s * p + (s - single(0.5))
    y = hl.select(equal(whole, single(0.0)), hl.select(equal(x, single(0.0)), x, p), y + y)
    return hl.select(is_nan(x), x, y)


def _expm1_f64(x: Value) -> Value:
    """By its series near zero, where subtracting one would lose digits."""
    a = hl.select(absolute(x) < hl.f64(0.5), x, hl.f64(0.0))
    terms = [1.0 / math.factorial(k) for k in range(2, 17)]
    near = (a * a) * poly(a, *terms) + a
    return hl.select(
        absolute(x) < hl.f64(0.5), hl.select(equal(x, hl.f64(0.0)), x, near), hl.exp(x) - hl.f64(1.0)
    )


def _frexp(x: Value, bias: Value) -> tuple[Value, Value]:
    """x = m * 2**e with m around 1, for a positive normal number."""
    base = hl.i32(0x3F3504F3)
    u = bits_of(x) - base
    return from_bits(hl.Float(32), (u & hl.i32(0x7FFFFF)) + base), hl.cast(
        hl.Float(32), u >> hl.i32(23)
    ) + bias


def _log_tail(f: Value) -> Value:
    """log(1 + f) - f."""
    p = poly(
        f,
        *(0.333333135, -0.250000089, 0.200021178, -0.166680008, 0.142195597, -0.124055058, 0.118880503),
        *(-0.116760977, 0.0674737915),
    )
    square = f * f
    return multiply_add(square * f, p, square * single(-0.5))


def _log_parts(x: Value) -> tuple[Value, Value, Value]:
    tiny = x < single(1.17549435e-38)
    y = hl.select(tiny, x * single(8388608.0), x)
    y = hl.select((y > single(0.0)) & (y < single(INF)), y, single(1.0))
    m, e = _frexp(y, hl.select(tiny, single(-23.0), single(0.0)))
    f = m - single(1.0)
    return f, _log_tail(f), e


def _log_edges(x: Value, found: Value) -> Value:
    zero, infinite = number(x, 0), number(x, INF)
    found = hl.select(equal(x, infinite), infinite, found)
    found = hl.select(equal(x, zero), number(x, -INF), found)
    return hl.select((x > zero) | equal(x, zero), found, number(x, NAN))


@elementary
def log(x: Value) -> Value:
    """The natural logarithm."""
    if is_wide(x):
        return hl.log(x)
    f, tail, e = _log_parts(x)
    found = (e * single(-2.12194440e-4) + tail) + f
    return _log_edges(x, multiply_add(e, single(0.693359375), found))


@elementary
def log2(x: Value) -> Value:
    """The logarithm to base 2."""
    if is_wide(x):
        return hl.log(x) * hl.f64(1.4426950408889634)
    f, tail, e = _log_parts(x)
    c = single(0.442695041)
    return _log_edges(x, e + (f + ((f * c + tail * c) + tail)))


@elementary
def log10(x: Value) -> Value:
    """The logarithm to base 10."""
    if is_wide(x):
        return hl.log(x) * hl.f64(0.43429448190325182)
    f, tail, e = _log_parts(x)
    found = tail * single(7.00731903e-4) + e * single(4.60503898e-6)
    found = f * single(7.00731903e-4) + found
    found = tail * single(0.43359375) + found
    found = f * single(0.43359375) + found
    return _log_edges(x, e * single(0.301025390625) + found)


@elementary
def log1p(x: Value) -> Value:
    """log(1 + x): the rounding error of the sum comes back as a correction of first order."""
    one = number(x, 1)
    u = x + one
    d = hl.select(x > one, one - (u - x), x - (u - one))
    if is_wide(x):
        found = hl.log(u) + d / u
        return hl.select(equal(x, hl.f64(0.0)), x, _log_edges(u, found))
    y = hl.select((u > single(0.0)) & (u < single(INF)), u, one)
    m, e = _frexp(y, single(0.0))
    f = m - one
    found = (e * single(-2.12194440e-4) + (_log_tail(f) + d / y)) + f
    found = multiply_add(e, single(0.693359375), found)
    return hl.select(equal(x, single(0.0)), x, _log_edges(u, found))
