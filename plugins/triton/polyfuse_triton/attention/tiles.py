"""How attention with few queries is divided, and where that is expected to be faster than the library's."""

from __future__ import annotations

from polyfuse_triton.attention.problem import FewQueries, Tiles
from polyfuse_triton.target import STREAMING, Target

_MOST_ROWS = 16
"""Rows of queries that one matrix instruction takes."""
_LONGEST = 128
"""Numbers of a query, key or value."""
_MOST_PARTS = 8
"""Programs of a cluster."""
_SHORTEST_PART = 128
"""Keys of a part, at least."""
_PROGRAMS = 1.5
"""Programs on each multiprocessor that together ask for enough."""


def is_faster(call: FewQueries, target: Target) -> bool:
    """Whether the kernel here is expected to be faster than the library's: where that was measured, which is
    for one query and a mask.
    """
    return is_possible(call, target) and call.queries == 1 and call.bias_dtype is not None


def is_possible(call: FewQueries, target: Target) -> bool:
    """Whether there is a kernel for a call."""
    if target.arch < STREAMING or not target.clusters:
        return False
    return call.rows <= _MOST_ROWS and max(call.depth, call.values) <= _LONGEST


def tiles_of(call: FewQueries, target: Target) -> Tiles:
    """As many parts as keep all multiprocessors reading."""
    parts = 1
    while (
        parts < _MOST_PARTS
        and call.pairs * parts < _PROGRAMS * target.multiprocessors
        and call.keys >= 2 * parts * _SHORTEST_PART
    ):
        parts *= 2
    return Tiles(parts, 64, 4, 3)
