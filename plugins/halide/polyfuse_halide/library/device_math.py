"""Functions of which the device has better ones than polynomials: a branch costs only those who take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import halide as hl

__all__ = ["DEVICE_FUNCTIONS"]

DEVICE_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"sin": hl.sin, "cos": hl.cos, "tan": hl.tan}
)
"""What generated programs for a device call by these names."""
