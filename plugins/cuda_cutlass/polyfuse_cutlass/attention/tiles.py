"""How attention is cut: as was measured on an H100 (docs/decisions/flexible-attention.md)."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.flex.problem import Problem
from polyfuse.ir.types import DType

ENDLESS = 1 << 24
"""Side of a block that covers all there is: where there is no mask."""
LANES = 64
"""Numbers of 16 bits in a row of a slab, which the copy engine swizzles."""
_GROUP_ROWS = 64
_WARPGROUP = 128
_REGISTERS = {2: (24, 240), 3: (32, 160)}
"""By groups: what a thread that feeds, and one that multiplies, may have."""
_FEWEST = 128
"""Queries below which most of a block would have nothing to do."""


@dataclass(frozen=True)
class Tiles:
    """Groups of 64 queries in a block, keys of a tile, and tiles on their way; lengths of a query and of a
    value, as multiples of a slab's rows.
    """

    groups: int
    keys: int
    depth: int
    values: int
    stages: int = 2

    @property
    def rows(self) -> int:
        """Queries of a block."""
        return self.groups * _GROUP_ROWS

    @property
    def threads(self) -> int:
        """Of a block: one group more feeds the others."""
        return _WARPGROUP * (self.groups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that feeds, and of one that multiplies."""
        return _REGISTERS[self.groups]

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: tiles from a multiple of 1024 on, barriers, and which tiles they are."""
        tiles = 2 * (self.rows * self.depth + self.stages * self.keys * (self.depth + self.values))
        return 1024 + tiles + 8 * (4 * self.stages + 1) + 4 * self.stages


@dataclass(frozen=True)
class BackwardTiles:
    """Keys that a block keeps, 64 for each of two groups; queries of a tile, on their way in stages;
    length of a query and value, as a multiple of a slab's rows.
    """

    rows: int
    depth: int
    keys: int = 128
    stages: int = 2
    groups: int = 2

    @property
    def threads(self) -> int:
        """Of a block: one group more feeds the others."""
        return _WARPGROUP * (self.groups + 1)

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that feeds, and of one that multiplies, as compiled without spilling."""
        return (40, 232) if self.depth == LANES else (24, 240)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block: tiles from a multiple of 1024 on, gradients of scores, what is known of
        each query, barriers, and which tiles they are.
        """
        tiles = 2 * (2 * self.keys * self.depth + self.stages * 2 * self.rows * self.depth)
        scores = self.stages * 2 * self.keys * self.rows
        return (
            1024 + tiles + scores + self.stages * 8 * self.rows + 8 * (6 * self.stages + 1) + 4 * self.stages
        )


def tiles_of(problem: Problem, waits: bool) -> Tiles:
    """Tiles that divide the blocks of the mask; `waits` says whether the scores' factor waits for weights.

    Raises `UnsupportedError` where a block would mostly wait.
    """
    _check_rows(problem)
    depth, values = (-(-n // LANES) * LANES for n in (problem.depth, problem.values))
    free = problem.query_block >= ENDLESS and problem.key_block >= ENDLESS
    # where scores are changed one by one, registers of three groups do not suffice
    groups = 3 if free and waits and max(depth, values) <= LANES else 2
    keys = 128 if max(depth, values + LANES) <= 192 else 64
    _check_blocks(problem, groups * _GROUP_ROWS, keys)
    return Tiles(groups, keys, depth, values)


def backward_tiles_of(problem: Problem) -> BackwardTiles:
    """Tiles of the backward that divide the blocks of the mask.

    Raises `UnsupportedError` for lengths whose sums have no room in registers.
    """
    _check_rows(problem)
    depth = -(-max(problem.depth, problem.values) // LANES) * LANES
    if depth > 2 * LANES:
        raise UnsupportedError("gradients of long keys and values have no room in registers")
    tiles = BackwardTiles(rows=128 if depth == LANES else 64, depth=depth)
    _check_blocks(problem, tiles.rows, tiles.keys)
    return tiles


def _check_rows(problem: Problem) -> None:
    if problem.dtype not in (DType.bf16, DType.f16):
        raise UnsupportedError(f"queries of {problem.dtype} are not multiplied here")
    if isinstance(problem.queries, int) and problem.queries < _FEWEST:
        raise UnsupportedError("there are too few queries for a block of them")


def _check_blocks(problem: Problem, rows: int, keys: int) -> None:
    for side, block in ((rows, problem.query_block), (keys, problem.key_block)):
        if block < ENDLESS and block % side:
            raise UnsupportedError(f"blocks of {block} are no multiples of {side}")
