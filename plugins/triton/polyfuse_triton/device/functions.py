"""Device functions that generated kernels call.

Arithmetic here follows eager mode on a GPU, to the bit where that is exact. What comes from CUDA's libdevice
is the precise version of each function, never the fast one.
"""

from __future__ import annotations

import triton
import triton.language as tl

from polyfuse_triton.device import combine
from polyfuse_triton.device.atomics import atomic_update
from polyfuse_triton.device.bytes import by_words, integer_bf16, integer_f16, of_groups, signed_byte_bf16
from polyfuse_triton.device.chains import publish, wait_for
from polyfuse_triton.device.combine import *  # noqa: F403
from polyfuse_triton.device.libdevice import (
    anywhere,
    high_half,
    libdevice,
    low_half,
    multiplied,
    quick_exp2,
    quick_inverse,
    wait_for_cluster,
)
from polyfuse_triton.device.lines import scaled_lines
from polyfuse_triton.device.philox import random_bits, random_normal, random_uniform
from polyfuse_triton.device.words import signed_words, transposed_rows
from polyfuse_triton.sort.keys import sort_key, sort_rank

__all__ = [
    "anywhere",
    "atomic_update",
    "beginning",
    "by_words",
    "digamma",
    "divide",
    "divide_by",
    "divide_scaled",
    "float_floor_div",
    "float_remainder",
    "high_half",
    "wait_for",
    "wait_for_cluster",
    "index_div",
    "index_mod",
    "int_floor_div",
    "int_fmod",
    "int_remainder",
    "int_trunc_div",
    "integer_bf16",
    "integer_f16",
    "inverse_of",
    "libdevice",
    "low_half",
    "multiplied",
    "nextafter",
    "of_groups",
    "quick_erf",
    "quick_exp",
    "quick_sigmoid",
    "quick_tanh",
    "random_bits",
    "random_normal",
    "random_uniform",
    "scaled_lines",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sign",
    "signed_byte_bf16",
    "signed_words",
    "sort_key",
    "sort_rank",
    "publish",
    "to_f8e4m3",
    "to_f8e4m3_nan",
    "to_f8e5m2",
    "transposed_rows",
]
__all__ += combine.__all__


@triton.jit
def beginning(index: tl.tensor) -> tl.tensor:
    """The index where a tile begins, of which the compiler then knows that it is not negative."""
    tl.assume(index >= 0)
    return index


@triton.jit
def divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """Division rounded to nearest."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def inverse_of(b: tl.tensor) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """What `divide_scaled` needs of a divisor: a power of two that brings it to a middling size, the divisor
    times that, and the inverse of this.
    """
    large = tl.abs(b) > 1.2676506002282294e30
    small = tl.abs(b) < 7.888609052210118e-31
    scale = tl.where(large, 5.421010862427522e-20, tl.where(small, 1.8446744073709552e19, 1.0))
    scaled = b * scale
    return scale, scaled, tl.div_rn(1.0, scaled)


@triton.jit
def divide_by(a: tl.tensor, b: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Division by a number of middling size whose inverse is known: the quotient is corrected by what is left
    over. That takes half the instructions of a division.
    """
    quotient = a * inverse
    rest = tl.fma(quotient * -1, b, a)
    # zeros, infinities and NaN are right already
    return tl.where(tl.abs(rest) < tl.abs(a), tl.fma(rest, inverse, quotient), quotient)


@triton.jit
def divide_scaled(a: tl.tensor, scale: tl.tensor, scaled: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """Division by a number that `inverse_of` has prepared."""
    return divide_by(a * scale, scaled, inverse)


# --- division and remainders --------------------------------------------------------------------------------


@triton.jit
def index_div(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The quotient of an index rounded down."""
    quotient = a // b
    rest = a - quotient * b
    return quotient - ((rest != 0) & ((rest < 0) != (b < 0)))


@triton.jit
def index_mod(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The rest of `index_div`."""
    rest = a % b
    return rest + b * ((rest != 0) & ((rest < 0) != (b < 0)))


@triton.jit
def int_trunc_div(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The quotient without its fraction; the lowest number divided by minus one wraps."""
    if a.dtype.is_int_signed():
        negated = b == -1
        return tl.where(negated, 0 - a, a // tl.where(negated, 1, b))
    else:
        return a // b


@triton.jit
def int_fmod(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The rest of `int_trunc_div`, with the sign of the dividend."""
    if a.dtype.is_int_signed():
        return a % tl.where(b == -1, 1, b)
    else:
        return a % b


@triton.jit
def int_floor_div(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The quotient rounded down."""
    if a.dtype.is_int_signed():
        quotient = int_trunc_div(a, b)
        rest = a - quotient * b
        return tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    else:
        return a // b


@triton.jit
def int_remainder(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The rest of `int_floor_div`, with the sign of the divisor."""
    if a.dtype.is_int_signed():
        rest = int_fmod(a, b)
        return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    else:
        return a % b


@triton.jit
def float_remainder(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The remainder with the sign of the divisor."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def float_floor_div(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The quotient rounded down, as eager mode finds it: from the exact remainder."""
    plain = divide(a, b)
    rest = libdevice.fmod(a, b)
    quotient = divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    down = libdevice.floor(quotient)
    down = tl.where(quotient - down > 0.5, down + 1, down)
    down = tl.where(quotient == 0, libdevice.copysign(quotient * 0, plain), down)
    return tl.where(b == 0, plain, down)


# --- bits and signs -----------------------------------------------------------------------------------------


@triton.jit
def shift_left(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """A count outside the width shifts everything out."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, 0), 0)


@triton.jit
def shift_right(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """A count outside the width shifts everything out; the sign stays."""
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    if a.dtype.is_int_signed():
        return a >> tl.where(inside, b, bits - 1)
    else:
        return tl.where(inside, a >> tl.where(inside, b, 0), 0)


@triton.jit
def sign(a: tl.tensor) -> tl.tensor:
    """-1, 0 or 1; zero for NaN."""
    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)


@triton.jit
def nextafter(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The neighbour of a number towards another, by counting its bits."""
    if a.dtype == tl.float32:
        bits = a.to(tl.int32, bitcast=True)
        lowest = tl.where(b > 0, 1, -2147483647).to(tl.int32)
    else:
        bits = a.to(tl.int64, bitcast=True)
        lowest = tl.where(b > 0, tl.full((), 1, tl.int64), tl.full((), -9223372036854775807, tl.int64))
    away = (b > a) == (a > 0)
    bits = tl.where(a == 0, lowest, tl.where(away, bits + 1, bits - 1))
    moved = bits.to(a.dtype, bitcast=True)
    return tl.where((a != a) | (b != b), a + b, tl.where(a == b, b, moved))


# --- functions ----------------------------------------------------------------------------------------------


@triton.jit
def quick_exp(a: tl.tensor) -> tl.tensor:
    """The exponential of an f32, exact enough for results of 16 bits."""
    return quick_exp2(a * 1.4426950408889634)


@triton.jit
def quick_erf(a: tl.tensor) -> tl.tensor:
    """The error function of an f32, exact enough for results of bf16: to 6e-5 of its value, and to 1e-5 of
    what it lacks of one, or to half a unit in the last place of that.
    """
    size = tl.abs(a)
    # one less exp(-a^2) times t and a polynomial in t, fitted to the least largest relative error (9e-6)
    t = quick_inverse(size * 0.45 + 1.0)
    p = ((t * -0.13457903265953064 + 0.2882189154624939) * t + 0.09428989142179489) * t
    p = ((p + 0.24573130905628204) * t + 0.25243425369262695) * t + 0.25389575958251953
    large = 1.0 - p * t * quick_exp2(size * size * -1.4426950408889634)
    # near zero the difference above has few digits; the first two terms of the series have enough
    small = size * (size * size * -0.37612638903183754 + 1.1283791670955126)
    return libdevice.copysign(tl.where(size < 0.125, small, large), a)


@triton.jit
def quick_sigmoid(a: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-a)) of an f32, exact enough for results of 16 bits."""
    return quick_inverse(1.0 + quick_exp2(a * -1.4426950408889634))


@triton.jit
def quick_tanh(a: tl.tensor) -> tl.tensor:
    """The hyperbolic tangent of an f32, exact enough for results of 16 bits: to 3e-6 of its value."""
    large = 1.0 - 2.0 * quick_inverse(1.0 + quick_exp2(a * 2.8853900817779268))
    # near zero the difference above has few digits; the first two terms of the series have enough
    return tl.where(tl.abs(a) < 0.0625, a * tl.fma(a * a, -0.3333333333333333, 1.0), large)


@triton.jit
def sigmoid(a: tl.tensor) -> tl.tensor:
    """1 / (1 + exp(-a))."""
    return divide(tl.full((), 1, a.dtype), libdevice.exp(a * -1) + 1)


@triton.jit
def digamma(a: tl.tensor) -> tl.tensor:
    """The derivative of lgamma as eager mode finds it: reflected at zero, raised to ten, then a series."""
    x = a.to(tl.float64)
    below = x < 0
    part = x - libdevice.trunc(x)
    total = tl.where(below, -3.141592653589793 / libdevice.tan(part * 3.141592653589793), x - x)
    y = tl.where(below, 1 - x, x)
    for _ in tl.static_range(10):
        short = y < 10
        total = tl.where(short, total - 1 / y, total)
        y = tl.where(short, y + 1, y)
    inverse = 1 / (y * y)
    series = inverse * 0.08333333333333333 - 0.021092796092796094
    series = series * inverse + 0.007575757575757576
    series = series * inverse - 0.004166666666666667
    series = series * inverse + 0.003968253968253968
    series = series * inverse - 0.008333333333333333
    series = series * inverse + 0.08333333333333333
    found = libdevice.log(y) - 0.5 / y - series * inverse + total
    found = tl.where(y == 10, total + 2.251752589066721, found)
    # neither infinity is smaller than itself
    found = tl.where(x == float("inf"), x, found)
    found = tl.where(below & (part == 0), float("nan"), found)
    found = tl.where(x == 0, tl.where(x.to(tl.int64, bitcast=True) < 0, float("inf"), float("-inf")), found)
    return found.to(a.dtype)


# --- 8-bit floating-point numbers ---------------------------------------------------------------------------


@triton.jit
def to_f8e4m3(a: tl.tensor) -> tl.tensor:
    """Rounded to nearest; what is too large becomes the largest number, as in newer torch."""
    return a.to(tl.float8e4nv)


@triton.jit
def to_f8e4m3_nan(a: tl.tensor) -> tl.tensor:
    """Rounded to nearest; what is too large becomes NaN of its sign, as in older torch."""
    sign = (a.to(tl.float32).to(tl.int32, bitcast=True) >> 24) & 0x80
    rounded = a.to(tl.float8e4nv).to(tl.int8, bitcast=True)
    nothing = (sign | 0x7F).to(tl.int8)
    return tl.where(tl.abs(a) <= 464.0, rounded, nothing).to(tl.float8e4nv, bitcast=True)


@triton.jit
def to_f8e5m2(a: tl.tensor) -> tl.tensor:
    """Rounded to nearest; what is too large becomes infinite, as in eager mode, not the largest number."""
    rounded = a.to(tl.float8e5).to(tl.int8, bitcast=True)
    infinite = tl.where(a > 0, 124, -4).to(tl.int8)
    return tl.where(tl.abs(a) >= 61440.0, infinite, rounded).to(tl.float8e5, bitcast=True)
