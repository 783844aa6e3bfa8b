"""How operand B of a matmul gets to the registers, and what a plan for one says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from polyfuse.plugin import Config

TILE = 16
"""Rows of a matrix register; tiles along the depth elsewhere have fewer columns."""


class OperandPath(IntEnum):
    """How operand B gets to the registers."""

    PACKED = 0
    """Packed in blocks, in which columns lie along the lanes."""

    DIRECT = 1
    """Read where it is: its columns are contiguous there."""

    DOTS = 2
    """Read where it is: its steps are contiguous there, as those of operand A are; lanes run along the
    depth."""

    PAIRS = 3
    """Packed, bf16 in pairs of steps."""

    TILES = 4
    """Packed likewise, for the machine's own matrix registers."""

    PREPACKED = 5
    """Packed before, once for all calls."""

    CONVERTED = 6
    """Converted or dequantised, once for all rows, in rows along the depth; lanes run along it as with
    `DOTS`."""

    PREPACKED_TILES = 7
    """Packed before, for the machine's own matrix registers."""

    TURNED = 8
    """Read where it is, its columns as rows of the machine's own matrix registers; the rows of operand A are
    packed as columns, and sums transposed."""

    PREPACKED_PAIRS = 9
    """Packed before, bf16 in pairs of steps."""

    @property
    def prepacked(self) -> bool:
        """Whether blocks are packed before."""
        return self in (OperandPath.PREPACKED, OperandPath.PREPACKED_TILES, OperandPath.PREPACKED_PAIRS)

    @property
    def along_depth(self) -> bool:
        """Whether lanes run along the depth."""
        return self in (OperandPath.DOTS, OperandPath.CONVERTED)

    @property
    def packed(self) -> bool:
        """Whether blocks are packed."""
        return self in (OperandPath.PACKED, OperandPath.PAIRS, OperandPath.TILES)

    @property
    def blocked(self) -> bool:
        """Whether several blocks are multiplied with each tile of rows before the next one."""
        return self.packed or self.prepacked or self is OperandPath.TURNED

    @property
    def paired(self) -> bool:
        """Whether operands are packed in pairs of bf16."""
        return self in (OperandPath.PAIRS, OperandPath.PREPACKED_PAIRS) or self.tiles

    @property
    def tiles(self) -> bool:
        """Whether the machine's own matrix registers multiply."""
        return self in (OperandPath.TILES, OperandPath.PREPACKED_TILES)


@dataclass(frozen=True)
class MatmulPlan:
    """How a matmul is run.

    Attributes:
        path: how operand B is read.
        rows: rows of a tile of results.
        vectors: vectors of columns in a block; a tile spans all of them unless lanes run along the depth.
        columns: columns of a tile where lanes run along the depth.
        depth: steps that are added up in registers before the sums go to memory.
        blocks: blocks that are packed at once.
        slices: parts of the depth that threads add up side by side.
        lines: whether each tile of a convolution is a part of a line of the image (`groups.lines`).
    """

    path: OperandPath
    rows: int
    vectors: int
    columns: int
    depth: int
    blocks: int
    slices: int = 1
    lines: bool = False

    @property
    def turns(self) -> bool:
        """Whether columns are rows of matrix registers: some that are converted, or all as they are."""
        converts_tiles = self.path is OperandPath.CONVERTED and self.columns == TILE
        return converts_tiles or self.path is OperandPath.TURNED

    def config(self) -> Config:
        """The plan as numbers."""
        return Config.of(
            path=int(self.path),
            rows=self.rows,
            vectors=self.vectors,
            columns=self.columns,
            depth=self.depth,
            blocks=self.blocks,
            **({"slices": self.slices} if self.slices > 1 else {}),
            **({"lines": 1} if self.lines else {}),
        )


def plan_of(config: Config) -> MatmulPlan:
    """The plan that numbers stand for."""
    return MatmulPlan(
        OperandPath(config.get("path")),
        config.get("rows"),
        config.get("vectors"),
        config.get("columns"),
        config.get("depth"),
        config.get("blocks"),
        config.get("slices", 1),
        config.get("lines", 0) == 1,
    )


def configs_of(plans: Sequence[MatmulPlan]) -> list[Config]:
    """Plans as configurations, each once."""
    return list(dict.fromkeys(plan.config() for plan in plans))
