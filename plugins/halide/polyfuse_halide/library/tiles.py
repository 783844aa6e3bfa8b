"""Tiles of what lies along another axis than the lanes, transposed in registers."""

from __future__ import annotations

from typing import Any

__all__ = ["TILE", "transpose_in_registers"]

TILE = 16
"""Points of a tile along either axis."""
_AT_ONCE = 8
"""Elements that a tile reads at once: 8 vectors of 8 are exchanged with the fewest instructions."""


def transpose_in_registers(
    tile: Any, func: Any, level: Any, read: Any, stored: Any, sizes: tuple[int, int]
) -> None:
    """A tile is computed in vectors along the axis `read` and stored in vectors along the axis `stored`: as
    all of them are there at once, Halide transposes them in registers. `sizes` are those of the tile.
    """
    tile.compute_at(func, level).bound_extent(read, sizes[0]).bound_extent(stored, sizes[1])
    tile.reorder_storage(stored, read)
    tile.reorder(stored, read).vectorize(read, _AT_ONCE).unroll(read)
    tile.reorder(stored, read).unroll(stored)
