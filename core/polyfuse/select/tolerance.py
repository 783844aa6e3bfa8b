"""By how much the results of two right implementations may differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from polyfuse.select.work import Storage

__all__ = ["tolerance"]

# Relative to the largest result: sums in another order, and products of rounded operands.
_BY_TYPE: Final = {"float64": 1e-9, "float32": 1e-3, "float16": 1e-2, "bfloat16": 4e-2}
# Products of float32 that a device may round to ten bits of fraction.
_ROUNDED: Final = 1e-2
_EIGHT_BITS: Final = 0.2


def tolerance(storages: Iterable[Storage]) -> float:
    """The tolerance for a problem: that of its narrowest type."""
    worst = 1e-9
    for storage in storages:
        if storage.dtype.startswith("float8"):
            worst = max(worst, _EIGHT_BITS)
        elif storage.dtype == "float32" and not storage.device.startswith("cpu"):
            worst = max(worst, _ROUNDED)
        else:
            worst = max(worst, _BY_TYPE.get(storage.dtype, 0.0))
    return worst
