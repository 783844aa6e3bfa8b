"""How a matrix product is run: which operand is laid out anew, and which tile of results is in registers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.kit import Machine, Work, seconds, work_of
from polyfuse.plugin import Config
from polyfuse.symbolic import axis_size
from polyfuse_cpp.isa import Isa, dot_instructions
from polyfuse_cpp.matmul.problem import Product

__all__ = [
    "ProductPlan",
    "Way",
    "configs_of",
    "nearby_plans",
    "packed_width",
    "plan_of",
    "plan_seconds",
    "product_plans",
]

_BLOCK_BYTES = 384 << 10
"""What is laid out of the right operand at once: it stays in a processor's second cache."""

_FEW = 96
"""Rows beyond which an operand that is read once for each tile of rows is better laid out first."""


_UNITS, _SLICE = 8, 512
"""Tiles below which the depth is cut, and the shortest slice."""


_THREADS = Machine(operations=8 * 6e9, moved=60e9, units=_UNITS, start=1e-7)
"""Half cycles and bytes of a few threads, in a second."""


class Way(IntEnum):
    """How the right operand gets to the registers."""

    PACKED = 0
    """Laid out in panels, in which columns lie along the lanes."""

    DIRECT = 1
    """Read where it is: its columns are contiguous there."""

    DOTS = 2
    """Read where it is: its steps are contiguous there, as those of the left operand are; lanes run along the
    depth."""

    PAIRS = 3
    """Packed, bf16 in pairs of steps."""

    TILES = 4
    """Packed likewise, for the machine's own matrix registers."""

    KEPT = 5
    """Laid out in panels before, once for all calls."""

    @property
    def packed(self) -> bool:
        """Whether panels are laid out."""
        return self in (Way.PACKED, Way.PAIRS, Way.TILES)

    @property
    def blocked(self) -> bool:
        """Whether several panels are multiplied with each tile of rows that is laid out."""
        return self.packed or self is Way.KEPT

    @property
    def paired(self) -> bool:
        """Whether operands are laid out in pairs of bf16."""
        return self in (Way.PAIRS, Way.TILES)


_AT_ONCE = {Way.PAIRS: 2, Way.TILES: 16}
"""Steps of the depth that one instruction takes, times the vectors."""


@dataclass(frozen=True)
class ProductPlan:
    """One way to run a product.

    Attributes:
        way: how the right operand is read.
        rows: rows of a tile of results.
        vectors: vectors of columns in a panel; a tile spans all of them unless lanes run along the depth.
        columns: columns of a tile where lanes run along the depth.
        depth: steps that are added up in registers before the sums go to memory.
        panels: panels that are laid out at once.
        slices: parts of the depth that threads add up side by side.
    """

    way: Way
    rows: int
    vectors: int
    columns: int
    depth: int
    panels: int
    slices: int = 1

    def config(self) -> Config:
        """The plan as numbers."""
        return Config.of(
            way=int(self.way),
            rows=self.rows,
            vectors=self.vectors,
            columns=self.columns,
            depth=self.depth,
            panels=self.panels,
            **({"slices": self.slices} if self.slices > 1 else {}),
        )


def plan_of(config: Config) -> ProductPlan:
    """The plan that numbers stand for."""
    return ProductPlan(
        Way(config.get("way")),
        config.get("rows"),
        config.get("vectors"),
        config.get("columns"),
        config.get("depth"),
        config.get("panels"),
        config.get("slices", 1),
    )


def product_plans(product: Product, isa: Isa) -> list[ProductPlan]:
    """Plans worth trying, the best guess first."""
    rows = product.extent(product.left.axes)
    machine = _Machine(product, isa)
    ways = list(_ways(product, isa))
    if len(ways) > 1:
        # what is surely slower is not worth building
        faster = any(way.paired for way in ways)
        # narrow numbers are multiplied several at a time there
        most = _FEW if product.right.memory is product.dtype else 4 * _FEW
        ways = [
            way
            for way in ways
            if not (way.packed and rows <= 2)
            and not (way is Way.DOTS and rows > most)
            and not (way is Way.PACKED and faster)
        ] or [Way.PACKED]
    found = {way: list(machine.plans(way)) for way in ways}
    order = sorted(found, key=lambda way: _rank(way, rows))
    best = [found[way][0] for way in order]
    others = found[order[0]][1:3]
    sliced = [plan for plan in map(machine.sliced, best[:2]) if plan.slices > 1]
    return [*sliced[:1], *best, *others, *sliced[1:]]


def nearby_plans(product: Product, isa: Isa, plan: ProductPlan) -> list[ProductPlan]:
    """Plans of the same way with another tile, another depth or other panels; none around the best guess of
    all, where they were never faster by more than two percent.
    """
    if plan == product_plans(product, isa)[0]:
        return []
    machine = _Machine(product, isa)
    tiles = [p for p in machine.plans(plan.way) if p != plan]
    deep = 32 << 10
    # of 30 linear layers with packed panels, none was faster by more than two percent with longer passes
    depths = (plan.depth // 2 // 32 * 32, *(() if plan.way.packed else (plan.depth * 2,)))
    near = [
        machine.plan(plan.way, plan.rows, plan.vectors, plan.columns, depth)
        for depth in depths
        if 64 <= depth <= deep and (depth < plan.depth or product.extent(product.depth) > plan.depth)
    ]
    return [*tiles[:2], *near]


def packed_width(node: Reduction, isa: Isa) -> int:
    """Columns of a panel, if the right operand were laid out once: whole vectors of the numbers that are
    multiplied, which divide all columns if any do. 0: it is better read as it is.
    """
    count, kind = axis_size(node.axes[-1]), node.values[1].dtype
    if isa.lanes == 1 or accumulates(kind) is not kind:
        return 0
    widths = [vectors * isa.lanes for vectors in (4, 3, 2)]
    return next((width for width in widths if count % width == 0), widths[-1])


def plan_seconds(product: Product, isa: Isa, plan: ProductPlan) -> float:
    """A guess of how long a plan takes."""
    return _Machine(product, isa).seconds(plan)


def _ways(product: Product, isa: Isa) -> Iterator[Way]:
    """The ways that the memory of the right operand allows."""
    right, left = product.right, product.left
    if right.panel:
        yield Way.KEPT if right.memory is product.dtype else Way.PACKED
        return
    if right.index is not None and right.step == 1:
        alike = right.memory is product.dtype or right.memory.itemsize < product.dtype.itemsize
        if alike and (left.memory.is_float == right.memory.is_float):
            yield Way.DOTS
    if right.index is not None and right.apart == 1 and right.step is not None:
        if right.memory is product.dtype:
            yield Way.DIRECT
    yield from _paired_ways(product, isa)
    yield Way.PACKED


def _paired_ways(product: Product, isa: Isa) -> Iterator[Way]:
    """The ways of two plain bf16 operands, on a machine that multiplies pairs of them."""
    left, right = product.left, product.right
    plain = right.index is not None and (product.rows_touch or (left.index is not None and left.step == 1))
    turned = right.step is not None and right.apart is not None and 1 in (right.step, right.apart)
    if isa.lanes != 16 or not (plain and turned and left.memory is right.memory is DType.bf16):
        return
    if "PF_AMX" in dot_instructions():
        yield Way.TILES
    if "PF_DOT_BF16" in dot_instructions():
        yield Way.PAIRS


def _rank(way: Way, rows: int) -> float:
    """What comes first: few rows do not pay for a layout, many do."""
    if way.packed:
        return {Way.TILES: 0.5, Way.PAIRS: 0.7}.get(way, 1.0)
    limit = _FEW if way is Way.DOTS else 32
    return 0.0 if rows <= limit else 2.0


class _Machine:
    """The registers of a machine, and the tiles that they hold for one product."""

    def __init__(self, product: Product, isa: Isa) -> None:
        self.product, self.isa = product, isa
        self.size = product.dtype.itemsize
        self.registers = 32 if isa.name in ("avx512", "neon") else 16
        self.each = max(1, isa.lanes * self.size // isa.register_bytes)

    def plans(self, way: Way) -> Iterator[ProductPlan]:
        """Plans of one way, the best guess first: the one whose tiles take the fewest cycles."""
        rows = max(1, self.product.extent(self.product.left.axes))
        across = max(1, self.product.extent(self.product.right.axes[-1:]))
        if way is Way.TILES:
            yield self.plan(way, 32 if rows > 16 else 16, 2 if across > 16 else 1, 0)
            return
        ranked: list[tuple[float, int, ProductPlan]] = []
        for width in self._widths(way):
            held = self.registers // self.each - 1
            most = (held - width) // width if way is not Way.DOTS else held // (width + 1)
            if most < 1:
                continue
            vectors = width if way is not Way.DOTS else max(1, -(-width // self.isa.lanes))
            columns = width if way is Way.DOTS else 0
            fewest = -(-rows // most)
            for tiles in (fewest, fewest + 1):
                high = -(-rows // tiles)
                cycles = tiles * self._cycles(high, width, tiles > 1) / width
                if way is not Way.DOTS:
                    wide = width * self.isa.lanes
                    cycles *= (1 + 0.02 * width) * (-(-across // wide) * wide) / across
                ranked.append((cycles, -high * width, self.plan(way, high, vectors, columns)))
        if not ranked:
            ranked.append((0.0, 0, self.plan(way, 1, 1, 1 if way is Way.DOTS else 0)))
        yield from dict.fromkeys(plan for _, _, plan in sorted(ranked, key=lambda entry: entry[:2]))

    def sliced(self, plan: ProductPlan) -> ProductPlan:
        """The same with its depth cut into slices, where many machines have more threads than tiles."""
        product = self.product
        across = -(-product.extent(product.right.axes) // (plan.vectors * self.isa.lanes))
        tiles = -(-product.extent(product.left.axes) // plan.rows) * across * product.extent(product.batch)
        slices = min(-(-_UNITS // max(1, tiles)), product.extent(product.depth) // _SLICE)
        if tiles >= _UNITS or slices < 2:
            return plan
        return replace(plan, slices=slices, depth=min(plan.depth, _SLICE), panels=1)

    def seconds(self, plan: ProductPlan) -> float:
        """What the registers, the layout of panels and memory take, shared by a few threads."""
        product, lanes = self.product, self.isa.lanes
        rows = max(1, product.extent(product.left.axes))
        across = max(1, product.extent(product.right.axes))
        depth, batch = max(1, product.extent(product.depth)), max(1, product.extent(product.batch))
        high = -(-rows // plan.rows)
        if plan.way is Way.DOTS:
            width, wide, steps = plan.columns, -(-across // plan.columns), -(-depth // lanes)
        else:
            width, wide, steps = plan.vectors, -(-across // (plan.vectors * lanes)), depth
        tiles = batch * high * wide
        cycles = float(tiles * steps * self._cycles(plan.rows, width, high > 1)) / _AT_ONCE.get(plan.way, 1)
        if plan.way.packed:
            apart = product.right.apart
            each = 3 if apart == 1 else 2 * lanes if apart is None else 6
            cycles += batch * depth * across / lanes * each
        passes = -(-depth // max(1, plan.depth)) if plan.depth else 1
        cycles += 4.0 * (passes - 1) * batch * rows * across / lanes
        moved = work_of(product.kernel).moved
        return seconds(Work(cycles, moved), _THREADS, tiles * plan.slices)

    def _cycles(self, rows: int, width: int, again: bool) -> float:
        """Half cycles of a step of one tile: in a cycle, two multiplications, one load, or half a line of the
        second cache, which the right operand comes from where it is read `again`. Eight sums hide what one
        takes.
        """
        return max(rows * width, 2 * (rows + width), 4 * width if again else 0, 8)

    def _widths(self, way: Way) -> tuple[int, ...]:
        """How many vectors (two to four registers) or columns a tile may span."""
        if way is Way.DOTS:
            return (8, 4, 2)
        most, panel = 8 if way is Way.DIRECT else 4, self.product.right.panel
        widths = (width for width in (8, 4, 3, 2, 1) if 2 <= width * self.each <= most)
        return tuple(width for width in widths if not panel % (width * self.isa.lanes)) or (1,)

    def plan(self, way: Way, rows: int, vectors: int, columns: int, depth: int = 0) -> ProductPlan:
        """A plan with its depth, unless that is given, and as many panels as the second cache holds."""
        depth = depth or self._depth(way, rows)
        panel = depth * vectors * self.isa.lanes * (2 if way.paired else self.size)
        panels = max(1, _BLOCK_BYTES // panel) if way.blocked else 1
        return ProductPlan(way, rows, vectors, columns, depth, min(panels, 64))

    def _depth(self, way: Way, rows: int) -> int:
        """Steps of a pass: all where one tile holds all rows, else what the first cache holds of a tile's
        rows.
        """
        product = self.product
        alone = product.extent(product.left.axes) <= rows
        far = 4096 if alone else 512 if way is Way.KEPT else 1024
        most = (1024 if way.paired else 512) if way.packed else far
        steps = product.extent(product.depth)
        fixed = all(isinstance(product.facts.sizes[name], int) for name in product.depth)
        if not fixed:
            return most
        passes = -(-max(1, steps) // most)
        each = -(-max(1, steps) // passes)
        return (each + 31) // 32 * 32


def configs_of(plans: Sequence[ProductPlan]) -> list[Config]:
    """Plans as configurations, each once."""
    return list(dict.fromkeys(plan.config() for plan in plans))
