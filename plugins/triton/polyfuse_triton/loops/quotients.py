"""Shorter ways to the same numbers, where a kernel's numerics leave room.

A quotient by a number that many points share is a product with its inverse, corrected by what is left over.
An exponential of which only 16 bits are stored takes one instruction, and what is made of exponentials a few.
"""

from __future__ import annotations

import struct

from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts

__all__ = ["QUICK", "quotient_by", "stores_halves"]

QUICK = frozenset({"exp", "sigmoid", "tanh"})
"""Operations with a version for results of 16 bits, `quick_` and their names."""
_SMALL, _LARGE = 2.0**-100, 2.0**100


def quotient_by(text: str, divisor: float) -> str | None:
    """An f32 divided by a constant; None where that is near the ends of the range."""
    if not _SMALL < abs(divisor) < _LARGE:
        return None
    inverse = struct.unpack("f", struct.pack("f", 1.0 / divisor))[0]
    return f"divide_by({text}, {divisor!r}, {inverse!r})"


def stores_halves(facts: KernelFacts) -> bool:
    """Whether all floating-point numbers that a kernel stores have 16 bits or fewer."""
    stored = {a.dtype for a in facts.accesses if a.is_store}
    wide = {DType.f32, DType.f64}
    return any(kind.is_float for kind in stored) and wide.isdisjoint(stored)
