"""Operand B of a matmul as C++ text: blocks of columns, packed or read in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from polyfuse.ir.statements import Cast, Load
from polyfuse.ir.types import DType
from polyfuse.symbolic import product
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.odometer import advance
from polyfuse_cpp.loops.scope import Value
from polyfuse_cpp.matmul.narrow.converted import axis_of_bytes, multiplies_pairs
from polyfuse_cpp.matmul.narrow.nibbles import nibbles_of
from polyfuse_cpp.matmul.operand import OperandText
from polyfuse_cpp.matmul.paths import MatmulPlan, OperandPath
from polyfuse_cpp.matmul.problem import Matmul, MatrixOperand, is_far_layer, tile_steps
from polyfuse_cpp.memory.address import index_text

_PAD = 32
"""Elements behind a converted column: columns do not compete for sets of the L1 cache, and a vector may be
written past the end."""

_STEPS_AT_ONCE = 4
"""Steps of the depth after which a tile that vectors add up asks for something."""

_LAYOUT_ALONG, _LAYOUT_ACROSS, _LAYOUT_ANY = 3, 12, 48
"""What laying out a block costs, in sixteenths of a tile: copied, transposed, computed."""

_READ = 1.3
"""What reading a block from memory costs, where it lies as it is multiplied: sixteenths of a tile of one row,
for each byte of a vector."""

_COPIES = 4
"""Vectors of a column that are converted side by side."""


_AHEAD = {OperandPath.DIRECT: 8, OperandPath.PREPACKED: 64}
"""Steps ahead for which a tile asks operand B. What was packed once comes from memory, from where 64 steps
arrive in time, unless tiles before have asked (`later_block`). Rows of a matrix that is read where it is lie
far apart."""

_NEAR = 128 << 10
"""Bytes of operand B that stay in the near caches from tile to tile."""


@dataclass
class OperandBText(OperandText):
    """Operand B. `layout` says how a block of columns is packed: copied, transposed, or computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        side = self.operand
        self.wide = self.plan.vectors * self.lanes
        plain = side.index is not None and side.step is not None and side.apart is not None
        if plain and side.apart == 1:
            self.layout = "along"
        else:
            self.layout = "across" if plain and side.step == 1 else "any"

    @property
    def operand(self) -> MatrixOperand:
        """Operand B."""
        return self.matmul.b

    @property
    def packed_block(self) -> int:
        """Elements of a packed block."""
        return self.plan.depth * self.wide

    @property
    def narrow(self) -> int:
        """Vectors of the last block of columns, where it is known to have fewer than the others; else 0."""
        size = self.facts.sizes[self.operand.axes[-1]]
        if not isinstance(size, int) or size < self.wide:
            return 0
        rest = -(-(size % self.wide) // self.lanes)
        return rest if rest < self.plan.vectors else 0

    def room(self) -> str:
        """Elements to keep, as text."""
        if self.plan.path in (OperandPath.DOTS, OperandPath.TURNED) or self.plan.path.prepacked:
            return "0"
        if self.plan.path is OperandPath.CONVERTED:
            return f"{self.wide} * (depth_count + {_PAD})"
        return str(self.plan.blocks * self.packed_block)

    @property
    def element(self) -> str:
        """The type of the elements that are multiplied."""
        if self.plan.path is OperandPath.DOTS:
            return str(self.operand.memory)
        pairs = self.plan.path is OperandPath.CONVERTED and multiplies_pairs(self.matmul)
        return "bf16" if self.paired or pairs else str(self.matmul.dtype)

    def _block_at(self) -> str:
        room = "(bf16*)packed_b" if self.paired else "packed_b"
        return f"{room} + (block - block_a) * {self.packed_block}"

    # Parts of the loop nest.

    def before_pass(self) -> None:
        """Pack the blocks of columns, or declare where the only one is."""
        out, path = self.out, self.plan.path
        if path.packed:
            with out.block("for (i64 block = block_a; block < block_e; ++block)"):
                self._axes_of("block")
                out.line(f"{self.element}* const to = {self._block_at()};")
                self._pack()
            return
        if path.prepacked or path is OperandPath.TURNED:
            return
        if path is OperandPath.DIRECT:
            self._in_place()
            return
        if path is OperandPath.CONVERTED:
            self._converted()
            return
        # with those after the block, which are fetched ahead
        count = self.wide + self.plan.columns
        out.line(f"const {self.operand.memory}* columns_at[{count}];")
        with out.block():
            self._axes_of("block_a")
            lane = self.operand.axes[-1]
            with out.block(f"for (i64 j = 0; j < {count}; ++j)"):
                out.line(f"const i64 {lane} = index_min(column_from + j, column_count - 1);")
                out.line(f"columns_at[j] = {self._address('0', lane)};")

    def column_block_index(self) -> None:
        """Declare the indices of the outer axes and the first column of the current block."""
        self._axes_of("block")

    def columns_at(self, stored: bool = False) -> tuple[str, str]:
        """Where the current block is, and elements between steps of its depth; or where it is `stored`, and
        elements between its columns.
        """
        if stored or self.plan.path is OperandPath.TURNED:
            return self._address("depth_from", "column_from"), str(self.operand.apart)
        if self.plan.path is OperandPath.DIRECT:
            return "block_at", "block_step"
        if self.plan.path.prepacked and self.paired:
            return self._address("depth_from", "column_from"), str(self.wide)
        if self.plan.path is OperandPath.PREPACKED:
            step = self.operand.step
            assert step is not None
            return self._address("depth_from", "column_from"), index_text(step)
        return self._block_at(), str(self.wide)

    # Layouts.

    def _axes_of(self, block: str) -> None:
        outer = self.operand.axes[:-1]
        if all(self.facts.sizes[a] == 1 for a in outer):
            self._start(outer, "0")
            self.out.line(f"const i64 column_from = {block} * {self.wide};")
            return
        self._start(outer, f"{block} / across_count")
        self.out.line(f"const i64 column_from = {block} % across_count * {self.wide};")

    def _pack(self) -> None:
        """Pack one block, for one pass."""
        side, vectors = self.matmul.b, self.plan.vectors
        if self.layout == "any":
            self._computed()
            return
        function, distance = ("along", side.step) if self.layout == "along" else ("across", side.apart)
        assert distance is not None
        family = "pair" if self.paired else "matmul"
        self.out.line(
            f"{family}_{function}<{vectors}>(to, {self._address('depth_from', 'column_from')}, "
            f"{index_text(distance)}, depth_here, column_count - column_from);"
        )

    def _in_place(self) -> None:
        """Where the block is; one at the edge is packed, for nothing may be read past its end."""
        out, step = self.out, self.operand.step
        assert step is not None
        kind = self.matmul.dtype
        out.line(f"const {kind}* block_at = packed_b;")
        out.line(f"i64 block_step = {self.wide};")
        with out.block():
            self._axes_of("block_a")
            with out.block(f"if (column_from + {self.wide} <= column_count)", "} else {"):
                out.line(f"block_at = {self._address('depth_from', 'column_from')};")
                out.line(f"block_step = {index_text(step)};")
            with out.block("  "):
                out.line(f"{kind}* const to = packed_b;")
                self._pack()
            out.line("}")

    @property
    def converts_groups(self) -> bool:
        """Whether the columns of a tile are converted just before it, since no other tile of rows reads them:
        they come back from the nearest cache.
        """
        rows = product(self.facts.sizes[a] for a in self.matmul.a.axes)
        return self.plan.path is OperandPath.CONVERTED and isinstance(rows, int) and rows <= self.plan.rows

    def _converted(self) -> None:
        """Each column of the block as a row along the depth."""
        self.out.line(f"const {self.element}* columns_at[{self.wide}];")
        if self.converts_groups:
            return
        with self.out.block():
            self._axes_of("block_a")
            # tiles are whole: the last column is there again behind itself
            step = self.plan.columns
            count = f"(column_count - column_from + {step - 1}) / {step} * {step}"
            self._converted_columns("0", f"index_min({self.wide}, {count})", "j")

    def convert_group(self) -> None:
        """The columns of a tile from `j` on, where each is converted just before its tile."""
        with self.out.block():
            self._converted_columns("j", f"j + {self.plan.columns}", "(j - first)")

    def _converted_columns(self, first: str, end: str, room: str) -> None:
        """Some columns of a block, each to the buffer of column number `room`."""
        out, lane, kind = self.out, self.operand.axes[-1], self.element
        depth = self.matmul.moving_depth
        position = axis_of_bytes(self.matmul)
        outer, (name, *inner) = depth[:position], depth[position:]
        for other in self.matmul.depth:
            if other not in depth:
                out.line(f"const i64 {other} = 0;")
        out.line(f"const i64 first = {first};")
        with ExitStack() as loops:
            loops.enter_context(out.block(f"for (i64 j = first, end = {end}; j < end; ++j)"))
            out.line(f"const i64 {lane} = index_min(column_from + j, column_count - 1);")
            out.line(f"{kind}* to = ({kind}*)packed_b + {room} * (depth_count + {_PAD});")
            out.line("columns_at[j] = to;")
            outside, done = self.frame(name), frozenset[int]()
            for axis in (None, *outer):
                if axis is not None:
                    size = index_text(self.facts.sizes[axis])
                    loops.enter_context(out.block(f"for (i64 {axis} = 0; {axis} < {size}; ++{axis})"))
                rest = {*outer[outer.index(axis) + 1 if axis else 0 :], name, *inner}
                outside = outside.child()
                done |= outside.emit_invariants(self.operand.operand.body, rest)
            self._converted_lane(name, inner, outside, done)

    def _converted_lane(self, name: str, inner: Sequence[str], outside: Frame, done: frozenset[int]) -> None:
        """All steps along the axis of the lanes, to `to`, which moves on where other axes are around it."""
        out, lanes, whole = self.out, self.lanes, len(self.matmul.moving_depth) == 1
        size = self.facts.sizes[name]
        end = "depth_from + depth_here" if whole else index_text(size)
        points = prod(size for a in inner if isinstance(size := self.facts.sizes[a], int))
        out.line(f"i64 {name} = {'depth_from' if whole else '0'};")
        plain = self._plain_eights()
        if plain is not None and points == 1:
            # in the registers of bf16: as f32 they would be twice as many, and rounded again
            count = _COPIES * lanes
            with out.block(f"for (; {name} + {count} <= {end}; {name} += {count})"):
                address = f"{plain.buffer} + {index_text(plain.index)}"
                out.line(f"matmul_store_eights<{count // 32}>(to + {name}, {address});")
        whole_vectors = [(max(1, _COPIES // points), None), (1, None)]
        if self._looked_up(name, inner, end, outside, done):
            whole_vectors = []
        for copies, tail in (*whole_vectors, (1, "n")):
            steps = copies * lanes
            guard = f"{name} + {steps} <= {end}" if tail is None else f"{name} < {end}"
            with out.block(f"for (; {guard}; {name} += {steps})"):
                if tail:
                    out.line(f"const i64 n = {end} - {name};")
                self._converted_steps(name, inner, points, copies, tail, outside, done)
        if not whole:
            out.line(f"to += {end} * {points};")

    def _looked_up(
        self, name: str, inner: Sequence[str], end: str, outside: Frame, done: frozenset[int]
    ) -> bool:
        """Whole vectors of numbers of four bits, if that is what there is: looked up among what each of them
        becomes.
        """
        fits = self.lanes == 16 and self.element in ("f32", "bf16") and self.matmul.dtype is DType.f32
        nibbles = nibbles_of(self.matmul, name, inner) if fits else None
        if nibbles is None:
            return False
        out, kind = self.out, self.facts.memory[nibbles.byte.buffer]
        for point, shift in enumerate(nibbles.shifts):
            out.line(f"vf32 number_{point};")
            with out.block():
                self._start(tuple(inner), str(point))
                out.line(f"const auto every = iota<Vec, {kind}>({kind}(0), {kind}({1 << shift}));")
                frame = self.frame(name)
                frame.env = dict(outside.env)
                for stmt in self.operand.operand.body:
                    if id(stmt) in done:
                        continue
                    if stmt.targets[0] in nibbles.instead[point]:
                        other = nibbles.instead[point][stmt.targets[0]]
                        byte = Value(kind, True, ("every",))
                        frame.env[stmt.targets[0]] = byte if other is None else frame.env[other]
                    else:
                        frame.emit(stmt)
                out.line(f"number_{point} = {self._converted_value(frame, 0)};")
        address = f"{nibbles.byte.buffer} + {index_text(nibbles.byte.index)}"
        shifts = ", ".join(map(str, nibbles.shifts))
        numbers = f"number_0, number_1, {address}, {end}"
        out.line(f"{name} = matmul_nibbles<{shifts}>(to, {numbers});")
        return True

    def _converted_value(self, frame: Frame, copy: int) -> str:
        """The text of a number in the type of the sums."""
        computed, kind = self.operand.operand, self.matmul.dtype
        # what is stored in fewer bits is rounded by that
        text = (frame.stored if self.element != str(kind) else frame.text)(computed.value, True, copy)
        return text if computed.dtype.compute is kind else f"cast<{kind}>({text})"

    def _plain_eights(self) -> Load | None:
        """The load of a weight that is floats of eight bits and nothing else, and becomes bf16."""
        kinds = (DType.f8e4m3, DType.f8e5m2)
        match self.operand.operand.body:
            case (Load(indirect=(), mask=None) as load, *others) if self.element == "bf16":
                alike = all(isinstance(s, Cast) and s.dtype.is_float and not s.bitwise for s in others)
                if alike and self.facts.memory[load.buffer] in kinds:
                    return load
        return None

    def _converted_steps(
        self,
        name: str,
        inner: Sequence[str],
        points: int,
        copies: int,
        tail: str | None,
        outside: Frame,
        done: frozenset[int],
    ) -> None:
        out, computed = self.out, self.operand.operand
        narrow, vector = self.element != str(self.matmul.dtype), f"typename shape<{self.matmul.dtype}>::vec"
        for point in range(points):
            for copy in range(copies):
                out.line(f"{vector} part_{point}_{copy};")
            with out.block():
                self._start(tuple(inner), str(point))
                frame = self.frame(name, copies, tail)
                frame.env = dict(outside.env)
                for stmt in computed.body:
                    if id(stmt) not in done:
                        frame.emit(stmt)
                for copy in range(copies):
                    out.line(f"part_{point}_{copy} = {self._converted_value(frame, copy)};")
        address = f"to + {name} * {points}" if points > 1 else f"to + {name}"
        if points > 1:
            self.features.add("interleave")
            for copy in range(copies):
                parts = ", ".join(f"part_{point}_{copy}" for point in range(points))
                at = f"{address} + {copy * self.lanes * points}"
                if tail:
                    out.line(f"store_interleaved_n({at}, {points} * n, {parts});")
                elif narrow and points == 2:
                    out.line(f"matmul_store_pair({at}, interleaved<0>({parts}), interleaved<1>({parts}));")
                else:
                    out.line(f"store_interleaved({at}, {parts});")
            return
        for copy in range(0, copies, 2 if narrow and copies > 1 else 1):
            at = f"{address} + {copy * self.lanes}"
            if narrow and copies > 1:
                out.line(f"matmul_store_pair({at}, part_0_{copy}, part_0_{copy + 1});")
            else:
                out.line(f"store({at}, part_0_{copy});")

    def _computed(self) -> None:
        """The values of a block, statement by statement, in vectors along the columns."""
        out, facts, matmul = self.out, self.facts, self.matmul
        name = matmul.b.axes[-1]
        self._start(matmul.depth, "depth_from", fixed=False)
        with out.block("for (i64 k = 0; k < depth_here; ++k)"):
            if self.lanes == 1:
                with out.block(f"for (i64 {name} = column_from, j = 0; j < {self.wide}; ++{name}, ++j)"):
                    out.line(f"to[k * {self.wide} + j] = {matmul.dtype}(0);")
                    out.line(f"if ({name} >= column_count) continue;")
                    out.line(f"to[k * {self.wide} + j] = {self._values(None)[0]};")
            else:
                self._vectors(name)
            advance(matmul.depth, facts.sizes, out)

    def _vectors(self, name: str) -> None:
        out, vectors, kind = self.out, self.plan.vectors, self.matmul.dtype
        lane = self.operand.axes[-1]
        with out.block(f"if (column_from + {self.wide} <= column_count)", "} else {"):
            out.line(f"const i64 {name} = column_from;")
            for copy, text in enumerate(self._values(lane, vectors)):
                out.line(f"store(to + k * {self.wide} + {copy * self.lanes}, {text});")
        steps = f"{name} += {self.lanes}, j += {self.lanes}"
        with out.block(f"  for (i64 {name} = column_from, j = 0; j < {self.wide}; {steps})"):
            out.line(f"store(to + k * {self.wide} + j, fill<typename shape<{kind}>::vec>({kind}(0)));")
            out.line(f"if ({name} >= column_count) continue;")
            out.line(f"const i64 n = index_min({self.lanes}, column_count - {name});")
            out.line(f"store(to + k * {self.wide} + j, {self._values(lane, 1, 'n')[0]});")
        out.line("}")


def later_block(text: OperandBText, columns: str) -> str:
    """What a tile asks for, as an argument: its part of the block that is read where the one at `columns` is
    now in the next pass, or by the next group of blocks; else "".
    """
    matmul, out, wide, plan = text.matmul, text.out, text.wide, text.plan
    if plan.path is OperandPath.PACKED and text.layout == "across" and is_far_layer(matmul):
        at, _ = text.columns_at(stored=True)
        return f", {stored_later(text, at, _STEPS_AT_ONCE, False)}"
    alone = plan.path is OperandPath.PREPACKED and wide == matmul.b.packed_width
    if not is_far_layer(matmul) or not (alone or plan.path is OperandPath.PREPACKED_TILES):
        return ""
    size, steps = matmul.b.memory.itemsize, tile_steps(matmul) if plan.path.tiles else _STEPS_AT_ONCE
    out.line("const bool more = pass + 1 < pass_to;")
    out.line("const bool later = more || block + (block_e - block_a) < block_to;")
    following = f"((block_e - block_a) * depth_count - depth_from) * {wide}"
    behind = f"(more ? depth_here * {wide} : {following})"
    out.line(f"const {text.element}* const later_at = {columns} + {behind};")
    out.line(
        f"const matmul_later ahead = matmul_later_part(later_at, later ? depth_here * {size * wide} : 0, "
        f"depth_here / {steps}, tile - tile_a, tile_e - tile_a);"
    )
    return ", ahead"


def stored_later(text: OperandBText, columns: str, at_once: int, one_tile: bool) -> str:
    """The same of columns that lie along the depth, read in one pass from where they are stored, `columns`: a
    part of what the next group of blocks reads, or where there is one tile of rows all of the next block.
    `at_once`: steps of the depth behind which a tile asks.
    """
    out, wide, size = text.out, text.wide, text.operand.memory.itemsize
    depth = product(text.facts.sizes[name] for name in text.matmul.depth)
    if depth != text.operand.apart or not isinstance(depth, int) or depth > text.plan.depth:
        return "{nullptr, 0}"
    if one_tile:
        return f"{{(const char*)({columns} + {wide * depth}), block + 1 < block_to ? {wide} : 0}}"
    out.line("const i64 beside = block_e - block_a;")
    bytes_ = f"block + beside < block_to ? {wide * depth * size} : 0"
    steps = f"{depth // at_once}, tile - tile_a, tile_e - tile_a"
    return f"matmul_later_part({columns} + beside * {wide * depth}, {bytes_}, {steps})"


def steps_ahead(plan: MatmulPlan, matmul: Matmul) -> int:
    """Steps ahead for which a tile asks operand B; 0: it does not ask."""
    size = matmul.extent(matmul.depth) * matmul.extent(matmul.b.axes) * matmul.b.memory.itemsize
    near = plan.path is OperandPath.PREPACKED and size <= _NEAR
    return 0 if near else _AHEAD.get(plan.path, 0)


def layout_cost(text: OperandBText, rows_at_once: bool) -> int:
    """What it costs a thread to have one of its blocks of columns, in sixteenths of a tile."""
    plan = text.plan
    if rows_at_once:  # who shares columns packs all rows, which takes longer
        return 0
    if plan.path.packed:
        return {"along": _LAYOUT_ALONG, "across": _LAYOUT_ACROSS}.get(text.layout, _LAYOUT_ANY)
    if plan.path is OperandPath.CONVERTED:
        return _LAYOUT_ACROSS
    return max(1, round(_READ * text.lanes * text.operand.memory.itemsize / plan.rows))
