"""Scans along contiguous rows, many rows at a time: each lane of a vector walks a row of its own.

Tiles of the rows are read in vectors along them and turned in registers, so that neighbouring rows lie side
by side; the results are turned back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import halide as hl

from polyfuse_halide.library.arithmetic import Value
from polyfuse_halide.library.combine import merge_scan
from polyfuse_halide.library.passes import define, reads

__all__ = ["TILE", "RowScan", "turn"]

TILE = 16
"""Points of a tile along either axis."""
_TURNED = 8
"""Elements that a tile reads at once: 8 vectors of 8 are exchanged with the fewest instructions."""


def turn(tile: Any, func: Any, level: Any, read: Any, kept: Any, sizes: tuple[int, int]) -> None:
    """A tile is made in vectors along the axis `read` and kept in vectors along the axis `kept`: as all of
    them are there at once, Halide exchanges their elements in registers. `sizes` are those of the tile.
    """
    tile.compute_at(func, level).bound_extent(read, sizes[0]).bound_extent(kept, sizes[1])
    tile.reorder_storage(kept, read)
    tile.reorder(kept, read).vectorize(read, _TURNED).unroll(read)
    tile.reorder(kept, read).unroll(kept)


@dataclass
class RowScan:
    """A scan of one value along the last of `places`, with lanes along the one before it."""

    name: str
    kind: str
    places: Sequence[Any]
    extent: int

    def define(self, value: Value) -> Callable[..., list[Value]]:
        """Define the stages: what is scanned, the scan, and its results turned back."""
        self.given, self.scan, self.turned = (hl.Func(self.name + end) for end in ("_of", "", "_turned"))
        places = list(self.places)
        define(self.given, places, [value])
        define(self.scan, places, reads(self.given, places, 1))
        self.step = hl.RDom([(1, self.extent - 1)], f"{self.name}_r")[0]
        now, before = [*places[:-1], self.step], [*places[:-1], self.step - 1]
        merged = merge_scan(self.kind, reads(self.scan, before, 1), reads(self.scan, now, 1))
        define(self.scan, now, merged)
        define(self.turned, places, reads(self.scan, places, 1))
        return lambda *where: reads(self.turned, where, 1)

    def schedule(self, func: Any, block: Any, piece: Any, rows: int, tail: Any) -> None:
        """Within a block of rows of `func`; results are needed by the piece of a row."""
        row, step = self.places[-2:]
        turn(self.turned, func, piece, row, step, (rows, TILE))
        self.scan.compute_at(func, block).bound_extent(row, rows).reorder_storage(row, step)
        part, inside, half, lane = (hl.Var(f"{self.name}_{n}") for n in ("part", "inside", "half", "lane"))
        self.scan.split(step, part, inside, TILE, tail).split(row, half, lane, TILE)
        self.scan.reorder(lane, inside, half, part).vectorize(lane).unroll(inside)
        self.scan.update(0).reorder(row, self.step).vectorize(row, TILE).unroll(row)
        turn(self.given, self.scan, half, step, row, (TILE, TILE))
