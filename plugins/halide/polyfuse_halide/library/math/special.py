"""Error functions, gamma functions and powers."""

from __future__ import annotations

import math

import halide as hl

from polyfuse_halide.library.contraction import elementary, multiply_add
from polyfuse_halide.library.math.arithmetic import (
    Value,
    absolute,
    bits_of,
    copysign,
    equal,
    from_bits,
    is_inf,
    is_nan,
    moved_up,
    narrowed,
    negate,
    not_equal,
)
from polyfuse_halide.library.math.exponentials import exp, exp_less, log
from polyfuse_halide.library.math.polynomials import (
    INF,
    NAN,
    clamped,
    is_wide,
    nearest,
    poly,
    power_of_two,
    single,
)

__all__ = ["digamma", "erf", "erfc", "erfinv", "hypot", "lgamma", "power"]


@elementary
def erf(x: Value) -> Value:
    """The error function: one minus the exponential of what is nearly a polynomial."""
    a = absolute(x)
    a = hl.select(a > single(4.0), single(4.0), a)
    b = poly(
        a,
        *(0.128379167, 0.636619382, 0.102777832, -0.0191530678, -0.000160389557, 0.00166702106),
        *(-0.000632833079, 0.000117640052, -9.2561028e-06),
    )
    q = multiply_add(a, b, a)
    whole, n = nearest(q, 127, -1.44269504)
    r = whole * single(-0.693147182) - q
    p = exp_less(r)
    s = power_of_two(n)
    return copysign((single(1.0) - s) - s * p, x)


def erfc(x: Value) -> Value:
    """1 - erf(x) without loss: exp(-x**2) times a polynomial, with the square split so that it is exact."""
    a, one, four, top = absolute(x), single(1.0), single(4.0), single(10.1)
    c = hl.select(a < top, a, top)
    q = (c - four) / (c + four)
    p = poly(
        q,
        *(1.23299515, -0.139621079, 0.0153773772, 0.068093732, -0.100990728, 0.0938173309, -0.0666384026),
        *(0.0364242531, -0.0158882961, 0.00702593103, 0.000885073969),
    )
    h = from_bits(hl.Float(32), bits_of(c) & hl.i32(-4096))
    e = exp(negate(h * h))
    d = (c - h) * (c + h)
    m = d * poly(d, -1.0, 0.5, -0.166666667, 0.0416666667)
    y = e * (p / (c * single(2.0) + one))
    y = y * m + y
    y = hl.select(x < single(0.0), single(2.0) - y, y)
    y = hl.select(a < single(0.4), one - erf(x), y)
    return hl.select(is_nan(x), x, y)


def erfinv(x: Value) -> Value:
    """The inverse of erf."""
    one, a = single(1.0), absolute(x)
    w = negate(log((one - a) * (one + a)))
    s, u = w - single(2.5), hl.sqrt(w) - single(3.0)
    p = poly(
        s,
        *(1.50140941, 0.24664028, -0.00417738687, -0.0012527419, 0.000218344459, -4.96333132e-06),
        *(-3.46270826e-06, 4.66167251e-07, 2.32329125e-08, -8.79081696e-09),
    )
    q = poly(
        u,
        *(2.83297682, 1.00167489, 0.00944503397, -0.0076364656, 0.00568917952, -0.00360129052),
        *(0.00147924165, -4.93508669e-05, -0.00030483547, 0.000110573957),
    )
    y = x * hl.select(w < single(5.0), p, q)
    y = hl.select(equal(a, one), copysign(single(INF), x), y)
    return hl.select((a > one) | is_nan(x), single(NAN), y)


def _to_f64(x: Value) -> Value:
    return hl.cast(hl.Float(64), x)


def lgamma(x: Value) -> Value:
    """log|gamma(x)|, in double: shifted up by eight, reflected below zero."""
    kind = x.type()
    x = _to_f64(x)
    d = hl.f64
    a = hl.select(x < d(0.0), d(1.0) - x, x)
    low = a < d(8.0)
    base = hl.select(low, a, d(1.0))
    p = base
    for k in range(1, 8):
        p = p * (base + d(float(k)))
    p = hl.select(low, p, d(1.0))
    u = hl.select(low, a + d(8.0), a)
    w = d(1.0) / u
    tail = w * poly(
        w * w,
        *(0.083333333333330331, -0.0027777777680612846, 0.00079364576353562659, -0.0005943224333992349),
        0.00077280609715378893,
    )
    y = (u - d(0.5)) * hl.log(u) - u + d(0.91893853320467278) + tail - hl.log(p)
    f = absolute(x)
    f = f - hl.floor(f)
    f = hl.select(f > d(0.5), d(1.0) - f, f)
    s = f * poly(
        f * f,
        *(3.1415926535896359, -5.1677127799881655, 2.5501640359163882, -0.59926443410026542),
        *(0.082144795939639775, -0.0073640099832531563, 0.00044749809885089416),
    )
    y = hl.select(x < d(0.0), d(1.1447298858494002) - hl.log(s) - y, y)
    y = hl.select(equal(x, d(1.0)) | equal(x, d(2.0)), d(0.0), y)
    y = hl.select(equal(x, d(0.0)) | is_inf(x), d(INF), y)
    return narrowed(hl.select(is_nan(x), x, y), kind)


def digamma(x: Value) -> Value:
    """The derivative of lgamma: reflected at zero, raised to ten, then a series."""
    kind, d = x.type(), hl.f64
    x = _to_f64(x)
    below = x < d(0.0)
    part = x - hl.trunc(x)
    total = hl.select(below, d(-math.pi) / hl.tan(part * d(math.pi)), d(0.0))
    y = hl.select(below, d(1.0) - x, x)
    for _ in range(10):
        short = y < d(10.0)
        total = hl.select(short, total - d(1.0) / y, total)
        y = hl.select(short, y + d(1.0), y)
    inverse = d(1.0) / (y * y)
    series = inverse * poly(inverse, 1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
    found = total + hl.log(y) - d(0.5) / y - series
    found = hl.select(equal(x, d(INF)), x, found)
    found = hl.select(below & equal(part, d(0.0)), d(NAN), found)
    found = hl.select(equal(x, d(0.0)), copysign(d(INF), negate(x)), found)
    return narrowed(hl.select(is_nan(x), x, found), kind)


def hypot(x: Value, y: Value) -> Value:
    """sqrt(x**2 + y**2) without overflow on the way."""
    infinite = is_inf(x) | is_inf(y)
    if is_wide(x):
        a, b = absolute(x), absolute(y)
        top = hl.select(a > b, a, b)
        safe = hl.select((top > hl.f64(0.0)) & hl.logical_not(infinite), top, hl.f64(1.0))
        p, q = a / safe, b / safe
        found = safe * hl.sqrt(p * p + q * q)
        return hl.select(infinite, hl.f64(INF), found)
    a, b = _to_f64(x), _to_f64(y)
    return hl.select(infinite, single(INF), narrowed(hl.sqrt(a * a + b * b), hl.Float(32)))


def _quick_log(x: Value) -> Value:
    """The logarithm in double to 33 bits, of a positive normal number."""
    base = hl.i64(0x3FE6A09E667F3BCD)
    u = bits_of(x) - base
    m = from_bits(hl.Float(64), (u & hl.i64(0xFFFFFFFFFFFFF)) + base)
    e = hl.cast(hl.Float(64), hl.cast(hl.Int(32), u >> hl.i64(52)))
    f = m - hl.f64(1.0)
    t = f / (hl.f64(2.0) + f)
    z = t * t
    p = z * poly(
        z,
        0.66666666675794506,
        0.39999995623703366,
        0.28572109019654468,
        0.2217619212640656,
        0.19584130913997613,
    )
    return e * hl.f64(0.69314718055994531) + (t * p + (t + t))


def _quick_exp(x: Value) -> Value:
    c = clamped(hl.select(is_nan(x), hl.f64(0.0), x), -700.0, 700.0)
    n = hl.round(c * hl.f64(1.4426950408889634))
    r = n * hl.f64(-0.69314718055994531) + c
    q = poly(
        r,
        0.50000000679399681,
        0.16666665858695989,
        0.04166629377901615,
        0.0083334987106808908,
        0.0013944753519351872,
        0.00019789791807873,
    )
    scale = from_bits(hl.Float(64), moved_up(hl.cast(hl.Int(64), hl.cast(hl.Int(32), n)) + hl.i64(1023), 52))
    return (((r * r) * q + r) + hl.f64(1.0)) * scale


def power(x: Value, y: Value) -> Value:
    """x**y: exp(y log|x|) in double, then the sign and the cases where that is not the answer."""
    if is_wide(x):
        return hl.pow(x, y)
    one, zero, infinite = single(1.0), single(0.0), single(INF)
    ax, ay = absolute(x), absolute(y)
    usual = (ax > zero) & (ax < infinite)
    exponent = _to_f64(hl.select(is_nan(y), zero, y)) * _quick_log(_to_f64(hl.select(usual, ax, one)))
    r = narrowed(_quick_exp(exponent), hl.Float(32))
    # 0: no integer, 1: odd, 2: even, as all numbers from 2**24 on are
    small = hl.select(ay < single(16777216.0), ay, zero)
    half = small * single(0.5)
    whole = hl.select(equal(hl.floor(half), half), hl.i32(2), hl.i32(1))
    whole = hl.select(is_nan(y) | not_equal(hl.floor(small), small), hl.i32(0), whole)
    r = hl.select(equal(ax, zero), hl.select(y < zero, infinite, zero), r)
    r = hl.select(equal(ax, infinite), hl.select(y < zero, zero, infinite), r)
    flipped = hl.select(bits_of(x) < hl.i32(0), whole, hl.i32(0))
    r = hl.select(flipped == hl.i32(1), negate(r), r)
    fraction = hl.select(x < zero, whole, hl.i32(1))
    r = hl.select((fraction == hl.i32(0)) & not_equal(ax, infinite), single(NAN), r)
    r = hl.select(equal(ax, one) & equal(ay, infinite), one, r)
    r = hl.select(is_nan(x) | is_nan(y), x + y, r)
    return hl.select(equal(x, one) | equal(y, zero), one, r)
