"""How a matmul is laid out over programs and tiles: the data, without the choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load
from polyfuse.ir.types import DType
from polyfuse.kit.contraction import Contraction, Operand, match, match_two
from polyfuse.plugin import Config
from polyfuse.symbolic import IndexLike, axis_name, axis_size, coefficient, product
from polyfuse_triton.matmul.few_rows import exchanged, long_side_first
from polyfuse_triton.matmul.narrow import BOTH, GROUP, INSIDE, Narrow, narrow_of, read_of
from polyfuse_triton.tiling.plan import Dim, Plan

_ALIKE = (DType.f16, DType.bf16, DType.f32, DType.f64, DType.i8)
"""Types of which both operands of a matrix instruction have the same."""


@dataclass(frozen=True)
class Matmul:
    """What tilings of a matmul depend on.

    Attributes:
        contraction: the kernel taken apart.
        batch, rows, columns, depth: names of axes, outermost first; those of the depth in the order in which
            memory holds them.
        sizes: extent of each axis.
        itemsize: bytes of an operand's element.
        narrow: how an operand of bytes is walked; None where there is none.
        beside: a second matmul of the same right operand, whose sum the epilogue reads as well.
    """

    contraction: Contraction
    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    depth: tuple[str, ...]
    sizes: dict[str, IndexLike]
    itemsize: int
    narrow: Narrow | None = None
    beside: Contraction | None = None

    @property
    def weights(self) -> int:
        """How many left operands there are."""
        return 1 if self.beside is None else 2

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Example extents: batch, rows, columns, depth; of a depth of bytes, these."""
        batch, rows, columns, depth = self.contraction.shape
        return batch, rows, columns, depth // self.numbers

    @property
    def numbers(self) -> int:
        """How many numbers of the depth a step of a tile stands for."""
        return self.narrow.numbers if self.narrow is not None else 1

    @property
    def is_exact(self) -> bool:
        """Whether operands are f32 which may not be rounded, which no matrix instruction does."""
        return self.contraction.left.dtype is DType.f32 and self.contraction.kind == "dot"

    @property
    def makes_left(self) -> bool:
        """Whether a left operand is computed: the matrix instruction may take it from registers. What is only
        read is copied to shared memory.
        """
        both = (self.contraction, self.beside)
        return any(one is not None and read_of(one.left) is None for one in both)

    @property
    def shortest_depth(self) -> int:
        """The shortest depth of a tile that a matrix instruction takes."""
        return 32 if self.itemsize == 1 else 16

    def extent(self, names: Sequence[str]) -> IndexLike:
        """Points that some axes span together."""
        return product(self.sizes[name] for name in names)


@dataclass(frozen=True)
class MatmulPlan:
    """One way to compute a matmul.

    Attributes:
        m, n, k: rows, columns and depth of a tile.
        group: rows of tiles that neighbouring programs share, so that they find operands in the last cache.
        warps, stages: for Triton's compiler.
    """

    m: int
    n: int
    k: int
    group: int
    warps: int
    stages: int

    def config(self) -> Config:
        """As a configuration."""
        return Config.of(m=self.m, n=self.n, k=self.k, group=self.group, warps=self.warps, stages=self.stages)

    @staticmethod
    def of(config: Config) -> MatmulPlan:
        """What a configuration says."""
        m, n, k, group, warps, stages = (config.get(f) for f in ("m", "n", "k", "group", "warps", "stages"))
        return MatmulPlan(m, n, k, group, warps, stages)

    def dims(self, found: Matmul) -> tuple[Dim, ...]:
        """Tile dimensions over rows, columns and depth."""
        outer = (
            Dim("m", found.rows, found.extent(found.rows), self.m),
            Dim("n", found.columns, found.extent(found.columns), self.n),
        )
        if found.narrow is None:
            return (*outer, Dim("k", found.depth, found.extent(found.depth), self.k))
        # of a step: which one is known where it is used
        inside = Dim(INSIDE, (), self.k, self.k)
        if not found.narrow.together:
            return (*outer, inside)
        groups = found.narrow.groups(self.k)
        return (*outer, inside, Dim(BOTH, (), 2 * self.k, 2 * self.k), Dim(GROUP, (), groups, groups))

    def plan(self, found: Matmul, *names: str) -> Plan:
        """As a plan for those who write statements: the tile has the dimensions of some names."""
        dims = {dim.name: dim for dim in self.dims(found)}
        tiles = tuple(dims[name] for name in names)
        return Plan(tiles, None, found.batch, (), False, self.warps, self.stages)


def is_tile(config: Config) -> bool:
    """Whether a configuration is one of a `MatmulPlan`."""
    return config.get("m") > 0


def matmul_of(kernel: Kernel) -> Matmul | None:
    """The matmul that a kernel is; None where it is none, or one without a matrix instruction."""
    one = match(kernel)
    found, beside = (long_side_first(one), None) if one is not None else _pair(kernel)
    if found is None or not _has_instruction(found.left.dtype, found.right.dtype):
        return None
    groups = (found.batch, found.rows, found.columns, found.depth)
    sizes = {axis_name(a): axis_size(a) for axes in groups for a in axes}
    batch, rows, columns = (tuple(axis_name(a) for a in axes) for axes in groups[:3])
    narrow = narrow_of(found)
    depth = _in_memory_order(found) if narrow is None else narrow.depth
    return Matmul(found, batch, rows, columns, depth, sizes, found.left.dtype.itemsize, narrow, beside)


def _pair(kernel: Kernel) -> tuple[Contraction | None, Contraction | None]:
    """Two matmuls of one operand, this one on the right."""
    two = match_two(kernel)
    if two is None or any(map(narrow_of, two)):
        return None, None
    first, second = two if two[0].right == two[1].right else map(exchanged, two)
    return first, second


def _has_instruction(left: DType, right: DType) -> bool:
    return (left is right and left in _ALIKE) or (left.is_eight_bit_float and right.is_eight_bit_float)


def _in_memory_order(found: Contraction) -> tuple[str, ...]:
    """The depth axes so that the last one is contiguous in the operand that has one which is."""
    names = [axis_name(a) for a in found.depth]
    for operand in (found.right, found.left):
        steps = {axis: _steps(operand, axis) for axis in names}
        if any(step == 1 for step in steps.values()):
            return tuple(sorted(names, key=lambda name: -steps[name]))
    return tuple(names)


def _steps(operand: Operand, axis: str) -> int:
    """How far neighbours along an axis are apart in an operand's memory; a large number where unknown."""
    for stmt in operand.body:
        if isinstance(stmt, Load):
            factor = coefficient(stmt.index, axis)
            if isinstance(factor, int) and factor:
                return abs(factor)
    return 1 << 60
