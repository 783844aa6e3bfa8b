"""Functions of which the device has better ones than polynomials, for a branch costs only who takes it, and
functions where it matters that the device takes numbers below the smallest normal one for zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import halide as hl

from polyfuse_halide.library.math.arithmetic import Value, bits_of
from polyfuse_halide.library.math.polynomials import is_wide, single

__all__ = ["DEVICE_FUNCTIONS"]

_LEAST_NORMAL = 0x00800000
"""The bits of the smallest normal number."""


def _floor(x: Value) -> Value:
    """The next integer below: of the least numbers below zero, their bits say that they are."""
    if is_wide(x):
        return hl.floor(x)
    bits, lowest = bits_of(x), -(1 << 31)
    below = (bits > hl.i32(lowest)) & (bits < hl.i32(lowest + _LEAST_NORMAL))
    return hl.select(below, single(-1.0), hl.floor(x))


def _ceil(x: Value) -> Value:
    """The next integer above: of the least numbers above zero, their bits say that they are."""
    if is_wide(x):
        return hl.ceil(x)
    bits = bits_of(x)
    above = (bits > hl.i32(0)) & (bits < hl.i32(_LEAST_NORMAL))
    return hl.select(above, single(1.0), hl.ceil(x))


DEVICE_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"sin": hl.sin, "cos": hl.cos, "tan": hl.tan, "floor": _floor, "ceil": _ceil}
)
"""What generated programs for a device call by these names."""
