"""Functions of single elements as steps that run in vectors and fuse, where torch has no steps, or some that
contain an operator which does not.
"""

from __future__ import annotations

from ctypes import c_float
from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.runtime.devices.registry import device_of

_SCALED: Final = (
    *(1.2769783735, -0.0927639827, -0.1660276949, 0.1640551239, -0.0542684868, -0.0080337198),
    *(0.0090149464, 0.0010244956, -0.0019844493, 0.0003845611),
)
"""``(1 + 2 a) exp(a^2) erfc(a)`` as a polynomial in ``(a - 2) / (a + 2)``, for `a` from 0.7 on: fitted by
least squares of relative errors, which stay below 2.2e-8."""

_LARGE: Final = 1e18

_FURTHEST: Final = {torch.float32: 300, torch.float64: 2200}
"""A power of two that turns the type's least number into infinity, and its largest into zero."""

_EXACT: Final = 1 << 23
"""Levels up to which f32 holds each level and each difference of two."""


def log_ndtr(x: Tensor) -> Any:
    """The logarithm of the normal distribution function. In f32, its lower tail is `-x^2 / 2` and a scaled
    function that is nearly a polynomial.
    """
    if x.dtype is not torch.float32:
        return NotImplemented
    half_root = 0.5**0.5
    a = torch.clamp(x * -half_root, 0.7, _LARGE)
    q = (a - 2) / (a + 2)
    scaled = torch.full_like(q, _SCALED[-1])
    for coefficient in reversed(_SCALED[:-1]):
        scaled = scaled * q + coefficient
    tail = torch.log(scaled / (a * 4 + 2)) - x * x * 0.5
    near = torch.log1p(torch.special.erfc(x * half_root) * -0.5)
    return torch.where(x < -1, tail, near)


def ldexp(x: Tensor, exponent: Tensor) -> Any:
    """``x * 2**exponent`` for integer exponents, also where the type of `x` does not hold that power, as with
    the 128 that `frexp` gives for f32's largest numbers.

    f32 is scaled in f64, which holds each product; f64 in three steps, each by a power that it holds.
    """
    furthest = _FURTHEST.get(x.dtype)
    if furthest is None or exponent.is_floating_point():
        return NotImplemented
    n = exponent.long().clamp(-furthest, furthest).double()
    if x.dtype is torch.float32:
        return (x.double() * torch.exp2(n)).float()
    third = torch.floor(n / 3)
    power = torch.exp2(third)
    return x * power * power * torch.exp2(n - third * 2)


def fake_quantize(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Any:
    """`x` rounded to a level, and whether that is between the least and the largest.

    Level `q` stands for ``(q - zero_point) * scale``, and what is no number for the least.
    """
    known = isinstance(scale, float) and isinstance(zero_point, int) and abs(zero_point) <= _EXACT
    if not known or not _is_exact(x, quant_min, quant_max):
        return NotImplemented
    step = c_float(scale).value
    inverse = c_float(1 / step).value if step else float("inf")
    level = torch.round(x * inverse) + zero_point
    return (_within(level, quant_min, quant_max) - zero_point) * step, _is_within(level, quant_min, quant_max)


def fake_quantize_by_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, quant_min: int, quant_max: int
) -> Any:
    """The same with tensors of one element for the scale, the zero point, and whether to round at all."""
    if not _is_exact(x, quant_min, quant_max) or not _counts_levels(scale, zero_point):
        return NotImplemented
    step, zero, rounds = (t.reshape(-1)[0] for t in (scale, zero_point, enabled))
    zero = zero.to(x.dtype)
    level = torch.round(x * torch.reciprocal(step)) + zero
    rounded = (_within(level, quant_min, quant_max) - zero) * step
    rounds = rounds != 0
    return torch.where(rounds, rounded, x), _is_within(level, quant_min, quant_max) | ~rounds


def fake_quantize_by_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Any:
    """The same with a scale and a zero point for each index of an axis. Levels are integers of 64 bits here:
    those beyond all integers are the least."""
    if not _is_exact(x, quant_min, quant_max) or not _counts_levels(scale, zero_point):
        return NotImplemented
    shape = [-1 if d == axis % x.dim() else 1 for d in range(x.dim())]
    step, zero = scale.reshape(shape), zero_point.reshape(shape)
    level = (torch.round(x * torch.reciprocal(step)) + zero).to(torch.int64)
    rounded = (torch.clamp(level, quant_min, quant_max) - zero).to(x.dtype) * step
    return rounded, _is_within(level, quant_min, quant_max)


def _is_exact(x: Tensor, quant_min: int, quant_max: int) -> bool:
    """Whether these steps give what the operator does; it computes otherwise in other types and elsewhere."""
    levels = max(abs(quant_min), abs(quant_max)) <= _EXACT
    return levels and x.dtype is torch.float32 and device_of(str(x.device)).is_host


def _counts_levels(scale: Tensor, zero_point: Tensor) -> bool:
    return scale.dtype is torch.float32 and not zero_point.is_floating_point()


def _within(level: Tensor, least: int, most: int) -> Tensor:
    return torch.where(level >= least, torch.where(level <= most, level, float(most)), float(least))


def _is_within(level: Tensor, least: int, most: int) -> Tensor:
    return (level >= least) & (level <= most)
