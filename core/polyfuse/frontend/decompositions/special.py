"""Special functions as steps that run in vectors, where torch's steps contain an operator that does not."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["log_ndtr"]

_SCALED: Final = (
    *(1.2769783735, -0.0927639827, -0.1660276949, 0.1640551239, -0.0542684868, -0.0080337198),
    *(0.0090149464, 0.0010244956, -0.0019844493, 0.0003845611),
)
"""``(1 + 2 a) exp(a^2) erfc(a)`` as a polynomial in ``(a - 2) / (a + 2)``, for `a` from 0.7 on: fitted by
least squares of relative errors, which stay below 2.2e-8."""

_LARGE: Final = 1e18


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
