"""Shorter ways to the same numbers, where a kernel's numerics leave room.

A quotient by a number that many points share is a product with its inverse, corrected by what is left over.
"""

from __future__ import annotations

import struct

_SMALL, _LARGE = 2.0**-100, 2.0**100


def quotient_by(text: str, divisor: float) -> str | None:
    """An f32 divided by a constant; None where that is near the ends of the range."""
    if not _SMALL < abs(divisor) < _LARGE:
        return None
    inverse = struct.unpack("f", struct.pack("f", 1.0 / divisor))[0]
    return f"divide_by({text}, {divisor!r}, {inverse!r})"
