"""Quotients and remainders with eager mode's answers at every edge."""

from __future__ import annotations

import halide as hl

from polyfuse_halide.library.math.arithmetic import (
    Value,
    absolute,
    add,
    bit_xor,
    bits_of,
    copysign,
    equal,
    from_bits,
    is_inf,
    is_nan,
    moved_up,
    mul,
    negate,
    not_equal,
    number,
    sub,
)

__all__ = ["floor_div", "fmod", "remainder", "trunc_div"]


def _int_trunc_div(a: Value, b: Value) -> Value:
    zero, one = number(b, 0), number(b, 1)
    if not a.type().is_int():
        return a / hl.select(equal(b, zero), one, b)
    negated = equal(b, number(b, -1))
    quotient = hl.div_round_to_zero(a, hl.select(equal(b, zero) | negated, one, b))
    return hl.select(negated, negate(a), quotient)


def _is_float(a: Value) -> bool:
    return bool(a.type().is_float())


def trunc_div(a: Value, b: Value) -> Value:
    """The quotient without its fraction."""
    return copysign(hl.trunc(a / b), a / b) if _is_float(a) else _int_trunc_div(a, b)


def _crosses(rest: Value, b: Value) -> Value:
    """Whether a remainder has the other sign than the divisor."""
    zero = number(rest, 0)
    return not_equal(rest, zero) & bit_xor(rest < zero, b < zero)


def floor_div(a: Value, b: Value) -> Value:
    """The quotient rounded down, as eager mode finds it: from the exact remainder."""
    if not _is_float(a):
        quotient = _int_trunc_div(a, b)
        if not a.type().is_int():
            return quotient
        rest = sub(a, mul(quotient, b))
        return hl.select(_crosses(rest, b), sub(quotient, number(a, 1)), quotient)
    plain, rest = a / b, fmod(a, b)
    quotient = (a - rest) / b
    quotient = hl.select(_crosses(rest, b), quotient - number(a, 1), quotient)
    down = hl.floor(quotient)
    down = hl.select(quotient - down > number(a, 0.5), down + number(a, 1), down)
    zero = number(a, 0)
    down = hl.select(equal(quotient, zero), copysign(zero, plain), down)
    return hl.select(equal(b, zero), plain, down)


def fmod(a: Value, b: Value) -> Value:
    """The rest of `trunc_div`, with the sign of the dividend."""
    return _fmod_f32(a, b) if _is_float(a) else sub(a, mul(_int_trunc_div(a, b), b))


_QUOTIENT_BITS = 9
"""Bits of the largest difference between exponents of two numbers of 32 bits."""


def _fmod_f32(a: Value, b: Value) -> Value:
    """Exact for all quotients: the remainder of ``ma * 2**k`` by ``mb``, with 2**k by repeated squaring.

    Mantissas have 24 bits, so all products are integers that doubles hold exactly.
    """
    wide = hl.Float(64)
    x, y = hl.cast(wide, absolute(a)), hl.cast(wide, absolute(b))
    regular = (
        (y > hl.f64(0.0)) & hl.logical_not(is_inf(y)) & hl.logical_not(is_nan(x)) & hl.logical_not(is_inf(x))
    )
    x, y = hl.select(regular, x, hl.f64(1.0)), hl.select(regular, y, hl.f64(1.0))
    exponent = hl.cast(hl.Int(32), bits_of(y) >> hl.i64(52))
    steps = hl.max(hl.cast(hl.Int(32), bits_of(x) >> hl.i64(52)) - exponent, hl.i32(0))
    # both as integers of 24 bits, `y` times a power of two that `steps` says for `x`
    scale = _power_of_two(hl.i32(2 * 1023 + 23) - exponent)
    whole = y * scale
    over = x * scale
    top = over * _power_of_two(hl.i32(1023) - steps)
    inverse = hl.f64(1.0) / whole

    def rest(value: Value) -> Value:
        left = value - hl.floor(value * inverse) * whole
        left = hl.select(left < hl.f64(0.0), left + whole, left)
        return hl.select(left >= whole, left - whole, left)

    power = rest(hl.f64(1.0))
    for bit in reversed(range(_QUOTIENT_BITS)):
        power = rest(power * power)
        twice = power + power
        twice = hl.select(twice >= whole, twice - whole, twice)
        power = hl.select((steps >> hl.i32(bit)) & hl.i32(1) == hl.i32(1), twice, power)
    found = hl.select(x < y, over, rest(rest(top) * power)) / scale
    found = copysign(hl.cast(hl.Float(32), found), a)
    infinite = is_inf(b) & hl.logical_not(is_inf(a)) & hl.logical_not(is_nan(a))
    return hl.select(regular, found, hl.select(infinite, a, hl.f32(float("nan"))))


def _power_of_two(biased: Value) -> Value:
    """2 to a power that is given with the bias of a double."""
    return from_bits(hl.Float(64), moved_up(hl.cast(hl.Int(64), biased), 52))


def remainder(a: Value, b: Value) -> Value:
    """The rest of `floor_div`, with the sign of the divisor."""
    rest = fmod(a, b)
    if not _is_float(a) and not a.type().is_int():
        return rest
    return hl.select(_crosses(rest, b), rest + b if _is_float(a) else add(rest, b), rest)
