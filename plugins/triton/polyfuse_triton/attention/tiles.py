"""How attention with few queries is divided, and where that is expected to be faster than the library's."""

from __future__ import annotations

from polyfuse_triton.attention.problem import FewQueries, Tiles
from polyfuse_triton.target import Target

__all__ = ["is_faster", "tiles_of"]

_OLDEST = 90
"""The architecture from which that was measured."""
_MOST_ROWS = 64
_LONGEST = 256
"""Numbers of a query, key or value."""
_MOST_PARTS = 16
_SHORTEST_PART = 128
"""Keys of a part, at least."""
_PROGRAMS = 1.5
"""Programs on each multiprocessor that together ask for enough."""


def is_faster(call: FewQueries, target: Target) -> bool:
    """Whether the kernel here is expected to be faster than the library's."""
    return target.arch >= _OLDEST and call.rows <= _MOST_ROWS and max(call.depth, call.values) <= _LONGEST


def tiles_of(call: FewQueries, target: Target) -> Tiles:
    """As many parts as keep all multiprocessors reading."""
    parts = 1
    while (
        parts < _MOST_PARTS
        and call.pairs * parts < _PROGRAMS * target.multiprocessors
        and call.keys >= 2 * parts * _SHORTEST_PART
    ):
        parts *= 2
    keys = 64 if max(call.depth, call.values) <= 128 else 32
    return Tiles(parts, keys, 4, 3)
