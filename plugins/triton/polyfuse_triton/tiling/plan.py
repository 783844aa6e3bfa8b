"""How one kernel is laid out over programs and tiles: the data, without the choice."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.symbolic import IndexLike, bounds
from polyfuse_triton.reductions.row_groups import Groups


def power_of_two(value: int) -> int:
    """The least power of two that is no smaller."""
    return 1 << max(0, value - 1).bit_length()


def most_of(size: IndexLike) -> int | None:
    """The largest value that a size may have; None: it has no bound."""
    return bounds(size)[1]


@dataclass(frozen=True)
class Dim:
    """One dimension of a program's tile.

    Attributes:
        name: ``"x"``, ``"y"``, ``"z"``, and ``"r"`` for the one that is reduced.
        axes: the kernel's axes that it runs through as one, outermost first.
        extent: number of points of these together.
        block: points in a tile, a power of two.
        together: most neighbouring points that one thread takes; 0 where Triton decides.
    """

    name: str
    axes: tuple[str, ...]
    extent: IndexLike
    block: int
    together: int = 0

    @property
    def constant(self) -> str:
        """Name of the compile-time argument that holds `block`."""
        return f"{self.name.upper()}BLOCK"

    @property
    def is_full(self) -> bool:
        """Whether every tile is full, so that nothing needs a mask."""
        return isinstance(self.extent, int) and self.extent % self.block == 0 and self.extent > 0

    @property
    def is_one(self) -> bool:
        """Whether one tile surely holds all points."""
        most = most_of(self.extent)
        return most is not None and most <= self.block


@dataclass(frozen=True)
class Plan:
    """How one kernel is run.

    Attributes:
        tiles: tile dimensions over parallel axes, outermost first.
        reduced: the tile dimension over reduction axes, or None.
        grid: parallel axes of which a program has one value each, outermost first.
        serial: reduction axes that a program walks one value at a time, outermost first.
        persistent: whether a tile holds all that is reduced; else a program loops over it.
        num_warps, num_stages: for Triton's compiler.
        groups: rows that one program takes one after the other; None where it takes those of its tile.
        looks_back: whether each chunk of the reduced tile dimension is a program of its own, for scans that
            continue from one to the next.
        joins: the same for reductions: programs of one row run side by side, and exchange what they
            found.
        walkers: with `joins`, programs of a row at most, each of which walks its part of the row in chunks;
            0: a program has one chunk, and keeps it.
        in_bands: whether programs that follow each other have the same part of the innermost dimension, and
            one part of the outer after the other.
        picked: buffers of which a program holds the row that its points' elements are picked from by data.
    """

    tiles: tuple[Dim, ...]
    reduced: Dim | None
    grid: tuple[str, ...]
    serial: tuple[str, ...]
    persistent: bool
    num_warps: int
    num_stages: int
    groups: Groups | None = None
    looks_back: bool = False
    joins: bool = False
    walkers: int = 0
    in_bands: bool = False
    picked: frozenset[str] = frozenset()

    @property
    def is_shared(self) -> bool:
        """Whether the chunks of a row are programs of their own."""
        return self.looks_back or self.joins

    @property
    def chunks(self) -> int:
        """Programs of one row that run side by side."""
        if not self.joins or self.reduced is None or not isinstance(self.reduced.extent, int):
            return 1
        return max(1, -(-self.reduced.extent // self.part))

    @property
    def part(self) -> int:
        """Points of a row that one program has of the reduced tile dimension, where its programs join."""
        assert self.reduced is not None and isinstance(self.reduced.extent, int)
        if not self.walkers:
            return self.reduced.block
        turns = -(-self.reduced.extent // self.reduced.block)
        return -(-turns // self.walkers) * self.reduced.block

    @property
    def program_dims(self) -> tuple[Dim, ...]:
        """The tile dimensions of which a program has one chunk, outermost first."""
        return self.dims if self.is_shared else self.tiles

    @property
    def dims(self) -> tuple[Dim, ...]:
        """All tile dimensions, in the order of a tensor's."""
        return self.tiles + ((self.reduced,) if self.reduced is not None else ())

    @property
    def walks(self) -> bool:
        """Whether a program loops over chunks of the reduced tile dimension."""
        if self.reduced is None or self.persistent or (self.is_shared and not self.walkers):
            return False
        return not self.reduced.is_one

    @property
    def elements(self) -> int:
        """Points of a tile."""
        total = 1
        for dim in self.dims:
            total *= dim.block
        return total

    def dim(self, name: str) -> Dim:
        """The tile dimension of a name."""
        return next(d for d in self.dims if d.name == name)
