"""How large the tiles of flexible attention are, and how they are run: as was measured on an H100
(docs/decisions/flexible-attention.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from polyfuse.flex.problem import Problem
from polyfuse.ir.expr import walk
from polyfuse_triton.loops.ops import LIBDEVICE
from polyfuse_triton.target import Target

Kind = Literal["forward", "queries", "keys"]
"""The forward, and the gradients of queries, and of keys and values."""
_SHARED_OF_LARGE = 200_000
"""Shared memory above which three stages of tiles of long queries fit twice."""
_CHEAP = frozenset({"floor", "ceil", "trunc", "copysign", "fmod"})
_COSTLY = frozenset({*LIBDEVICE, "sigmoid"} - _CHEAP)
"""Functions that need registers of their own."""


@dataclass(frozen=True)
class Tiles:
    """Queries and keys of a tile, and how it is run."""

    queries: int
    keys: int
    warps: int
    stages: int


def tiles_of(kind: Kind, problem: Problem, target: Target) -> Tiles:
    """Tiles of a kernel that divide the blocks of the mask."""
    found = _measured(kind, problem, target)
    sides = []
    for side, block in ((found.queries, problem.query_block), (found.keys, problem.key_block)):
        while block % side:
            side //= 2
        sides.append(side)
    return replace(found, queries=sides[0], keys=sides[1])


def _measured(kind: Kind, problem: Problem, target: Target) -> Tiles:
    longest = max(problem.depth, problem.values)
    is_large = target.shared_bytes > _SHARED_OF_LARGE
    costly = any(e.op in _COSTLY for e in walk(*problem.expressions))
    if problem.dtype.itemsize == 4:
        return Tiles(32, 32, 4, 2)
    if longest > 128:
        return Tiles(64, 32, 8, 2) if kind == "forward" else Tiles(32, 32, 4, 2)
    stages = 3 if longest <= 64 or (is_large and kind == "forward") else 2
    if kind == "keys" and longest > 64 and problem.mask is not None:
        # lists of masked and of whole blocks are two loops, whose registers do not fit beside two results
        return Tiles(32, 64, 4, 3)
    if kind == "forward" and longest <= 64 and not costly:
        return Tiles(64, 128, 4, 2)
    return Tiles(64, 64, 4, stages)
