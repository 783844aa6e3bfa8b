"""How a matmul is run: which operand is packed, and which tile of results is in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, prod

from polyfuse.ir.types import DType
from polyfuse.kit import Machine, Work, is_multiple, seconds, work_of
from polyfuse.symbolic import bounds, product
from polyfuse_cpp.isa import Isa, has_matrix_registers, has_pair_products
from polyfuse_cpp.matmul.groups.lines import grouped_tile, line_tile
from polyfuse_cpp.matmul.groups.stored import REGISTERS, taps_first, vectors_of
from polyfuse_cpp.matmul.narrow.converted import CONVERTED_ROWS, fills_tiles, is_converted, multiplies_pairs
from polyfuse_cpp.matmul.paths import TILE, MatmulPlan, OperandPath
from polyfuse_cpp.matmul.problem import Matmul, as_stored, is_far_layer, whole_tiles
from polyfuse_cpp.matmul.tiled.padded import padded_of
from polyfuse_cpp.matmul.tiled.turned import AT_ONCE_ROWS, FAR_TURNED_ROWS, TURNED_ROWS, turns
from polyfuse_cpp.matmul.window import (
    group_of,
    heights,
    lines_of,
    one_block,
    packing_cycles,
    window_of,
)

_PACKED_BYTES = 384 << 10
"""What is packed of operand B at once: it stays in the L2 cache."""

_PACKED_BEFORE = 192 << 10
"""The same of what was packed before for a layer: the next group arrives meanwhile."""

_WINDOW = 640
"""Steps of a pass over the depth of a convolution: the 576 of 64 channels under a window of 3x3 are one."""

_LINE = 1024
"""Steps of a line of a window beyond which a pass is a part of it."""

_FEW = 96
"""Rows beyond which an operand that is read once for each tile of rows is better packed first."""

_FEW_FOR_PAIRS = 8
"""The same of bf16 whose pairs of steps are multiplied without matrix registers."""

_BYTE_ROWS = 8
"""Rows up to which bytes are converted in registers, again for each tile of rows."""

_VARYING = 16
"""Rows up to which a kernel that does not know their number has a tile for each."""

_CONVERTING = 8
"""Half cycles in which a vector is converted, stored and loaded again."""

_LOADED = 32
"""Bytes of a vector of which two are loaded in a cycle."""

_FEW_FOR_TILES = 16
"""Rows beyond which matrix registers are faster than reading the weight along its depth."""

_UNITS, _SLICE = 8, 512
"""Tiles below which the depth is cut, and the shortest slice."""

_THREADS = Machine(operations=8 * 6e9, moved=60e9, units=_UNITS, start=1e-7)
"""Half cycles and bytes of a few threads, in a second."""


_AT_ONCE = {
    OperandPath.PAIRS: 2,
    OperandPath.PREPACKED_PAIRS: 2,
    OperandPath.TILES: 16,
    OperandPath.PREPACKED_TILES: 16,
    OperandPath.TURNED: 16,
}
"""Steps of the depth that one instruction takes, times the vectors."""


def matmul_plans(matmul: Matmul, isa: Isa) -> list[MatmulPlan]:
    """Plans worth trying, the best guess first."""
    rows = matmul.extent(matmul.a.axes)
    machine = _Machine(matmul, isa)
    paths = list(_paths(matmul, isa))
    if len(paths) > 1:
        # what is surely slower is not worth building
        faster = any(path.paired for path in paths)
        # narrow numbers are multiplied several at a time there
        most = _FEW if matmul.b.memory is matmul.dtype else 4 * _FEW
        if OperandPath.PAIRS in paths and not has_matrix_registers(isa):
            most = _FEW_FOR_PAIRS
        paths = [
            path
            for path in paths
            if not (path.packed and rows <= 2)
            and not (path is OperandPath.DOTS and rows > most)
            and not (path is OperandPath.CONVERTED and rows > CONVERTED_ROWS)
            and not (path is OperandPath.PACKED and faster)
        ] or [OperandPath.PACKED]
    found = {path: list(machine.plans(path)) for path in paths}
    stored = machine.stored()
    far = is_far_layer(matmul)
    order = sorted(found, key=lambda path: _rank(path, rows, far))
    best = [found[path][0] for path in order]
    others = found[order[0]][1:3]
    sliced = [plan for plan in map(machine.sliced, best[:2]) if plan.slices > 1]
    return [*stored, *sliced[:1], *best, *others, *sliced[1:]]


def nearby_plans(matmul: Matmul, isa: Isa, plan: MatmulPlan) -> list[MatmulPlan]:
    """Plans of the same path with another tile, another depth or other blocks; none around the best guess of
    all, where they were never faster by more than two percent.
    """
    if plan == matmul_plans(matmul, isa)[0]:
        return []
    machine = _Machine(matmul, isa)
    tiles = [p for p in machine.plans(plan.path) if p != plan]
    deep = 32 << 10
    # of 30 linear layers with packed blocks, none was faster by more than two percent with longer passes
    depths = (plan.depth // 2 // 32 * 32, *(() if plan.path.packed else (plan.depth * 2,)))
    near = [
        machine.plan(plan.path, plan.rows, plan.vectors, plan.columns, depth)
        for depth in depths
        if 64 <= depth <= deep and (depth < plan.depth or matmul.extent(matmul.depth) > plan.depth)
    ]
    return [*tiles[:2], *near]


def plan_seconds(matmul: Matmul, isa: Isa, plan: MatmulPlan) -> float:
    """A guess of how long a plan takes."""
    return _Machine(matmul, isa).seconds(plan)


def _paths(matmul: Matmul, isa: Isa) -> Iterator[OperandPath]:
    """The paths that the memory of operand B allows."""
    right, left = matmul.b, matmul.a
    if has_matrix_registers(isa) and padded_of(matmul) is not None:
        yield OperandPath.PREPACKED_TILES if right.paired else OperandPath.TILES
        return
    if right.paired:
        pairs = left.memory is right.memory is DType.bf16 and left.index is not None
        reads = whole_tiles(matmul) and (left.step == 1 or matmul.rows_touch)
        tiles = pairs and reads and has_matrix_registers(isa)
        if pairs and has_pair_products(isa) and not has_matrix_registers(isa):
            yield OperandPath.PREPACKED_PAIRS
            return
        yield OperandPath.PREPACKED_TILES if tiles else OperandPath.PACKED
        return
    if right.packed_width or group_of(matmul, isa.lanes) or one_block(matmul, isa.lanes):
        yield OperandPath.PREPACKED if right.memory is matmul.dtype else OperandPath.PACKED
        return
    if right.index is not None and right.step == 1:
        alike = right.memory is matmul.dtype or right.memory.itemsize < matmul.dtype.itemsize
        if alike and (left.memory.is_float == right.memory.is_float):
            yield OperandPath.DOTS
    few = isa.lanes > 1 and matmul.extent(left.axes) <= _BYTE_ROWS and not fills_tiles(matmul, isa)
    if few and as_stored(matmul) is not None:
        yield OperandPath.DOTS
    if is_converted(matmul, isa):
        yield OperandPath.CONVERTED
    if right.index is not None and right.apart == 1 and right.step is not None:
        if right.memory is matmul.dtype:
            yield OperandPath.DIRECT
    yield from _paired_paths(matmul, isa)
    yield OperandPath.PACKED


def _paired_paths(matmul: Matmul, isa: Isa) -> Iterator[OperandPath]:
    """The paths of two plain bf16 operands, on a machine that multiplies pairs of them."""
    left, right = matmul.a, matmul.b
    plain = right.index is not None and (matmul.rows_touch or (left.index is not None and left.step == 1))
    transposed = right.step is not None and right.apart is not None and 1 in (right.step, right.apart)
    if isa.lanes != 16 or not (plain and transposed and left.memory is right.memory is DType.bf16):
        return
    if has_matrix_registers(isa):
        if turns(matmul):
            yield OperandPath.TURNED
        yield OperandPath.TILES
    if has_pair_products(isa):
        yield OperandPath.PAIRS


def _rank(path: OperandPath, rows: int, far: bool) -> float:
    """What comes first: few rows do not pay for a layout, many do."""
    if path is OperandPath.TURNED:
        return -2.0 if rows in (FAR_TURNED_ROWS if far else TURNED_ROWS) else 2.0
    if path.tiles and rows > _FEW_FOR_TILES:
        return -1.0
    if path.packed:
        return {OperandPath.TILES: 0.5, OperandPath.PAIRS: 0.7}.get(path, 1.0)
    limit = {OperandPath.DOTS: _FEW, OperandPath.CONVERTED: CONVERTED_ROWS}.get(path, 32)
    return 0.0 if rows <= limit else 2.0


def most_varying(matmul: Matmul, path: OperandPath) -> int:
    """The most rows that there can be where a kernel has tiles of several heights: each row is read in place,
    their number is known only at run time, and it is small. 0: tiles have one height.
    """
    rows = product(matmul.facts.sizes[name] for name in matmul.a.axes)
    if path is not OperandPath.DOTS or isinstance(rows, int):
        return 0
    high = bounds(rows)[1]
    return high if high is not None and high <= _VARYING else 0


def columns_beside(matmul: Matmul, isa: Isa, rows: int) -> int:
    """Columns that are added up side by side in a tile of so many rows along the depth."""
    return _Machine(matmul, isa).dots_of(rows)[1]


class _Machine:
    """The registers of a machine, and the tiles that they hold for one matmul."""

    def __init__(self, matmul: Matmul, isa: Isa) -> None:
        self.matmul, self.isa = matmul, isa
        self.size = matmul.dtype.itemsize
        self.registers = 32 if isa.name == "avx512" or "aarch64" in isa.machines else 16
        self.each = max(1, isa.lanes * self.size // isa.register_bytes)

    def plans(self, path: OperandPath) -> Iterator[MatmulPlan]:
        """Plans of one path, the best guess first: the one whose tiles take the fewest cycles."""
        rows = max(1, self.matmul.extent(self.matmul.a.axes))
        across = max(1, self.matmul.extent(self.matmul.b.axes[-1:]))
        if most := most_varying(self.matmul, path):
            high = max(self._height(n) for n in range(1, most + 1))
            columns = self.dots_of(high)[1]
            vectors = max(1, -(-max(self._widths(path)) // self.isa.lanes))
            yield self.plan(path, high, vectors, columns, self._depth(path, most))
            return
        if path.tiles:
            wide = self.matmul.b.packed_width or across
            yield self.plan(path, 32 if rows > 16 else 16, 2 if wide > 16 else 1, 0)
            return
        if path is OperandPath.TURNED:
            two = is_multiple(self.matmul.facts.sizes[self.matmul.b.axes[-1]], 2 * TILE)
            yield self.plan(path, 32 if rows > 16 else 16, 2 if two else 1, 0)
            return
        if path is OperandPath.CONVERTED and fills_tiles(self.matmul, self.isa):
            yield self.plan(path, TILE, 1, TILE)
            return
        if path is OperandPath.PREPACKED and group_of(self.matmul, self.isa.lanes):
            yield self._grouped()
            return
        if path is OperandPath.PREPACKED:
            high, vectors = line_tile(
                self.matmul, self.matmul.b.packed_width, self.isa.lanes, self.registers, self.each
            )
            if high:
                depth = self.matmul.extent(self.matmul.depth)
                yield MatmulPlan(path, high, vectors, 0, depth, 1, lines=True)
        ranked: list[tuple[float, int, MatmulPlan]] = []
        for width in self._widths(path):
            held = self.registers // self.each - 1
            most = (held - width) // width if not path.along_depth else held // (width + 1)
            if most < 1:
                continue
            vectors = width if not path.along_depth else max(1, -(-width // self.isa.lanes))
            columns = width if path.along_depth else 0
            spans = width * self.isa.lanes == across
            for high in heights(self.matmul, rows, most, width, spans):
                tiles = -(-rows // high)
                if path.along_depth:
                    cycles = tiles * self._cycles(high, width, tiles > 1) / width
                else:
                    cycles = tiles * self._row_cycles(high, width, across, tiles > 1) * (1 + 0.02 * width)
                    if path is OperandPath.PREPACKED:
                        cycles += tiles * packing_cycles(self.matmul, high, across, width, self.isa.lanes)
                ranked.append((cycles, -high * width, self.plan(path, high, vectors, columns)))
        if not ranked:
            ranked.append((0.0, 0, self.plan(path, 1, 1, 1 if path.along_depth else 0)))
        yield from dict.fromkeys(plan for _, _, plan in sorted(ranked, key=lambda entry: entry[:2]))

    def stored(self) -> list[MatmulPlan]:
        """The plan of a convolution whose weight is laid out for each call, a block of columns at a time."""
        matmul = taps_first(self.matmul)
        vectors = vectors_of(matmul, self.isa.lanes) if matmul is not None else 0
        if matmul is None or not vectors or self.registers != REGISTERS:
            return []
        width = vectors * self.isa.lanes
        rows, vectors = line_tile(matmul, width, self.isa.lanes, self.registers, self.each)
        depth = matmul.extent(matmul.depth)
        return [MatmulPlan(OperandPath.PACKED, rows, vectors, 0, depth, 1, lines=True)] if rows else []

    def dots_of(self, rows: int) -> tuple[float, int]:
        """Half cycles for each column of a tile of so many rows whose lanes run along the depth, and how many
        columns it has then; infinitely many where the registers do not hold the rows.
        """
        held = self.registers // self.each - 1
        widths = [w for w in self._widths(OperandPath.DOTS) if rows <= held // (w + 1)]
        return min(((self._cycles(rows, w, False) / w, w) for w in widths), default=(inf, 1))

    def _height(self, rows: int) -> int:
        """The height of tiles that hold so many rows, as even as they can be, in the fewest cycles."""
        heights = {-(-rows // tiles): tiles for tiles in range(rows, 0, -1)}
        return min(heights, key=lambda high: (heights[high] * self.dots_of(high)[0], -high))

    def _grouped(self) -> MatmulPlan:
        """Groups of a convolution, all of whose depth is added up at once."""
        rows, vectors, blocks = grouped_tile(self.matmul, self.isa.lanes, self.registers, self.each)
        depth = self.matmul.extent(self.matmul.depth)
        return MatmulPlan(OperandPath.PREPACKED, rows, vectors, 0, depth, blocks)

    def sliced(self, plan: MatmulPlan) -> MatmulPlan:
        """The same with its depth cut into slices, where many machines have more threads than tiles."""
        matmul = self.matmul
        across = -(-matmul.extent(matmul.b.axes) // (plan.vectors * self.isa.lanes))
        tiles = -(-matmul.extent(matmul.a.axes) // plan.rows) * across * matmul.extent(matmul.batch)
        slices = min(-(-_UNITS // max(1, tiles)), matmul.extent(matmul.depth) // _SLICE)
        if plan.path is OperandPath.CONVERTED and len(matmul.moving_depth) > 1:
            return plan
        if plan.lines or tiles >= _UNITS or slices < 2 or group_of(matmul, self.isa.lanes):
            return plan
        return replace(plan, slices=slices, depth=min(plan.depth, _SLICE), blocks=1)

    def seconds(self, plan: MatmulPlan) -> float:
        """What the registers, the layout of blocks and memory take, shared by a few threads."""
        matmul, lanes = self.matmul, self.isa.lanes
        rows = max(1, matmul.extent(matmul.a.axes))
        across = max(1, matmul.extent(matmul.b.axes))
        depth, batch = max(1, matmul.extent(matmul.depth)), max(1, matmul.extent(matmul.batch))
        high = -(-rows // plan.rows)
        if plan.path.along_depth:
            width, wide, steps = plan.columns, -(-across // plan.columns), -(-depth // lanes)
        else:
            width, wide, steps = plan.vectors, -(-across // (plan.vectors * lanes)), depth
        tiles = batch * high * wide
        cycles = float(tiles * steps * self._cycles(plan.rows, width, high > 1)) / _AT_ONCE.get(plan.path, 1)
        if plan.path.packed:
            apart = matmul.b.apart
            each = 3 if apart == 1 else 2 * lanes if apart is None else 6
            cycles += batch * depth * across / lanes * each
        elif plan.path is OperandPath.CONVERTED:
            cycles += batch * depth * across / lanes * _CONVERTING
        passes = -(-depth // max(1, plan.depth)) if plan.depth else 1
        cycles += 4.0 * (passes - 1) * batch * rows * across / lanes
        moved = work_of(matmul.kernel).moved
        return seconds(Work(cycles, moved), _THREADS, tiles * plan.slices)

    def _cycles(self, rows: int, width: int, again: bool) -> float:
        """Half cycles of a step of one tile: in a cycle, two multiplications, one load, or half a line of the
        second cache, which operand B comes from where it is read `again`. Eight sums hide what one
        takes.
        """
        return max(rows * width, 2 * (rows + width), 4 * width if again else 0, 8)

    def _step_cycles(self, rows: int, width: int, again: bool) -> float:
        """The same where one operand is spread from single numbers: of vectors of 32 bytes, two are loaded in
        a cycle.
        """
        if window_of(self.matmul) is not None and self.isa.register_bytes > _LOADED:
            # one line of memory in a cycle, or two numbers
            return max(rows * width, rows + 2 * width, 4 * width if again else 0, 8)
        if self.isa.register_bytes > _LOADED:
            return self._cycles(rows, width, again)
        return max(rows * width, rows + width, 4 * width if again else 0, 8)

    def _row_cycles(self, rows: int, width: int, across: int, again: bool) -> float:
        """The same for tiles beside each other that hold all columns: the last one spans no more vectors than
        are left, unless windows overlap.
        """
        whole, rest = divmod(-(-across // self.isa.lanes), width)
        last = width if window_of(self.matmul) is not None else rest
        cycles = self._step_cycles
        return whole * cycles(rows, width, again) + (cycles(rows, last, again) if rest else 0)

    def _widths(self, path: OperandPath) -> tuple[int, ...]:
        """How many vectors (two to four registers) or columns a tile may span."""
        if path.along_depth:
            return (8, 4, 2)
        # pairs leave no room for more rows beside wider tiles
        most = {OperandPath.DIRECT: 8, OperandPath.PAIRS: 2}.get(path, 4)
        packed = self.matmul.b.packed_width or one_block(self.matmul, self.isa.lanes)
        # one vector is wide enough where it holds all columns
        least = 1 if self.matmul.extent(self.matmul.b.axes[-1:]) <= self.isa.lanes else 2
        widths = (width for width in (8, 4, 3, 2, 1) if least <= width * self.each <= most)
        return tuple(width for width in widths if not packed % (width * self.isa.lanes)) or (1,)

    def plan(self, path: OperandPath, rows: int, vectors: int, columns: int, depth: int = 0) -> MatmulPlan:
        """A plan with its depth, unless that is given, and as many blocks as the L2 cache holds."""
        depth, turned = depth or self._depth(path, rows), path is OperandPath.TURNED
        size = depth * vectors * self.isa.lanes * (2 if path.paired or turned else self.size)
        several = self.matmul.is_layer and self.matmul.extent(self.matmul.a.axes) > rows
        spanned = vectors * self.isa.lanes == self.matmul.b.packed_width and is_far_layer(self.matmul)
        before = (path.prepacked and path.paired) or turned
        before = before or (path is OperandPath.PREPACKED and spanned)
        most = _PACKED_BEFORE if before and several else _PACKED_BYTES
        blocks = min(max(1, most // size), 64) if path.blocked else 1
        sizes = [self.matmul.facts.sizes[name] for name in self.matmul.b.axes]
        across = [n for n in sizes if isinstance(n, int)]
        if len(across) == len(sizes):
            blocks = min(blocks, prod(across[:-1]) * -(-across[-1] // (vectors * self.isa.lanes)))
        return MatmulPlan(path, rows, vectors, columns, depth, blocks)

    def _depth(self, path: OperandPath, rows: int) -> int:
        """Steps of a pass: all where one tile holds all rows, else what the L1 cache holds of a tile's
        rows.
        """
        matmul = self.matmul
        alone = matmul.extent(matmul.a.axes) <= rows
        packed = _WINDOW if window_of(matmul) is not None else 512
        far = 4096 if alone else packed if path is OperandPath.PREPACKED else 1024
        if path is OperandPath.CONVERTED and multiplies_pairs(matmul):
            far = max(far, 2048)  # of half the bytes
        if path is OperandPath.TURNED and matmul.extent(matmul.a.axes) <= AT_ONCE_ROWS:
            far = 4096
        near = 1024 if path.paired or matmul.a.step == 1 else 512
        most = near if path.packed or path.tiles else far
        steps = matmul.extent(matmul.depth)
        if path is OperandPath.CONVERTED and len(matmul.moving_depth) > 1:
            return -(-steps // 32) * 32
        fixed = all(isinstance(matmul.facts.sizes[name], int) for name in matmul.depth)
        if not fixed:
            return most
        if path is OperandPath.PREPACKED and most < steps:
            line = lines_of(matmul, rows, most)
            if 0 < line <= _LINE:
                return max(1, most // line) * line
        passes = -(-max(1, steps) // most)
        each = -(-max(1, steps) // passes)
        return (each + 31) // 32 * 32
