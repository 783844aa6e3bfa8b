"""Distances between numbers of any type, as double precision."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ZERO", "apart", "has_other_sign", "of_unknown_sign", "spread"]

ZERO = 1e-30
"""The bound of a zero that may have either sign."""
_KNOWN = 1e-36
"""Below it the sign of a zero is known: what operations add for numbers below the normal ones is less."""


def apart(one: Tensor, other: Tensor) -> Tensor:
    """How far two results are apart: nothing where they are equal or both are NaN, infinitely where only one
    of them is, or where only one is infinite.
    """
    a, b = one.double(), other.double()
    distance = (a - b).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, distance.nan_to_num(nan=torch.inf))


def has_other_sign(one: Tensor, other: Tensor, error: Tensor) -> Tensor:
    """Whether two results are zeros of different sign, where the sign is known."""
    return (one == 0) & (other == 0) & (one.signbit() != other.signbit()) & (error < _KNOWN)


def of_unknown_sign(value: Tensor, error: Tensor) -> Tensor:
    """Whether a value is a zero, or may be one, whose sign is not known."""
    return (error >= value.double().abs()) & (error >= _KNOWN)


def spread(value: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number that a value may be."""
    if value.dtype is torch.bool:
        return value, value ^ (error > 0)
    finite = error.nan_to_num(0.0, 0.0)
    wide = value.double()
    if not value.dtype.is_floating_point:
        limits = torch.iinfo(value.dtype)
        low, high = (wide - finite).clamp(min=float(limits.min)), (wide + finite).clamp(max=float(limits.max))
        # beyond what double precision holds exactly, the value itself
        moved = finite > 0
        return (
            torch.where(moved, low, 0.0).to(value.dtype).where(moved, value),
            torch.where(moved, high, 0.0).to(value.dtype).where(moved, value),
        )
    return (wide - finite).to(value.dtype), (wide + finite).to(value.dtype)
