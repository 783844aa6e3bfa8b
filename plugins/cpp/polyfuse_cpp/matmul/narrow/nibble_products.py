"""Text of products with numbers of four bits, whose factors are applied to the sums of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from polyfuse.ir.statements import Load
from polyfuse.ir.types import DType
from polyfuse.kit import stride
from polyfuse.symbolic import coefficient, free_axes, product
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.loops.scope import Value
from polyfuse_cpp.matmul.narrow.converted import axis_of_bytes, fills_tiles, multiplies_pairs
from polyfuse_cpp.matmul.narrow.nibbles import Nibbles, nibbles_of
from polyfuse_cpp.matmul.narrow.scaled_nibbles import Scaling, scaling_of
from polyfuse_cpp.matmul.operand_a import OperandAText
from polyfuse_cpp.matmul.operand_b import OperandBText
from polyfuse_cpp.memory.address import index_text

_ROWS = 4
"""Rows up to which looking up each number for itself is faster than storing a column as numbers."""

_BYTES = 64
"""Bytes of a column that are multiplied at once."""

_EXACT = 256
"""Integers up to this are numbers of bf16."""

_LANES = 16
"""Lanes of a vector of sums, each of which belongs to eight numbers of a block."""


@dataclass(frozen=True)
class NibbleProducts:
    """The products of all rows with some columns, instead of tiles along the depth where rows
    hold nothing but moderate numbers.

    Attributes:
        a, b: the text of both operands.
        rows: how many rows there are.
        group, name, inner: axes of the depth: groups, bytes of one, and both halves of a byte.
        nibbles: where the bytes are.
        scaling: what is made of their halves.
        step: how they are multiplied, as the header names it.
    """

    a: OperandAText
    b: OperandBText
    rows: int
    group: str
    name: str
    inner: str
    nibbles: Nibbles
    scaling: Scaling
    step: str

    @classmethod
    def of(cls, a: OperandAText, b: OperandBText, isa: Isa) -> Self | None:
        """The products of a matmul, if its weight is such."""
        matmul, facts = b.matmul, b.facts
        rows = product(facts.sizes[name] for name in matmul.a.axes)
        wide = isa.name == "avx512" and isa.lanes == _LANES and matmul.dtype is DType.f32
        depth = matmul.moving_depth
        if not (wide and b.converts_groups and a.in_place and isinstance(rows, int)) or len(depth) != 3:
            return None
        most = _ROWS // 2 if fills_tiles(matmul, isa) else _ROWS
        if a.across or rows > most or axis_of_bytes(matmul) != 1:
            return None
        group, name, inner = depth
        groups, size = facts.sizes[group], facts.sizes[name]
        nibbles = nibbles_of(matmul, name, [inner])
        if nibbles is None or not isinstance(groups, int) or not isinstance(size, int):
            return None
        fits = size % _BYTES == 0 or (size in (_BYTES // 4, _BYTES // 2) and groups * size % _BYTES == 0)
        if not fits or stride(nibbles.byte.index, group) != size:
            return None
        operand = matmul.b.operand
        scaling = scaling_of(operand.body, operand.value, nibbles, {name, inner}, facts)
        if scaling is None:
            return None
        pairs = multiplies_pairs(matmul) and max(map(abs, scaling.offsets)) <= _EXACT
        step = "nibble_pairs" if pairs else "nibble_ones"
        return cls(a, b, rows, group, name, inner, nibbles, scaling, step)

    @property
    def _groups(self) -> int:
        found = self.b.facts.sizes[self.group]
        assert isinstance(found, int)
        return found

    @property
    def _size(self) -> int:
        """Bytes of a group."""
        found = self.b.facts.sizes[self.name]
        assert isinstance(found, int)
        return found

    @property
    def _room(self) -> int:
        """Numbers that are stored for the groups of a row or column."""
        return -(-self._groups // _LANES) * _LANES

    @property
    def _columns(self) -> int:
        """Columns side by side: as many as registers hold sums of."""
        return {1: 8, 2: 4}.get(self.rows, 2)

    @property
    def room(self) -> int:
        """Elements to keep: rows, the sums of their groups, what belongs to groups of columns."""
        depth = self._groups * self._size * 2
        # a vector may be read behind the last factor
        return self.rows * (depth + self._room) + (2 * self._columns + 1) * self._room

    def before_item(self) -> None:
        """Lay out all rows; declares whether they `fit`."""
        out = self.b.out
        out.line("bool fit;")
        with out.block():
            out.line("const i64 row_from = 0, rows_here = row_count;")
            self.a.before_tile()
            kinds = f"{self.nibbles.shifts[0]}, {self.rows}, {self.step}"
            sizes = f"depth_count, {self._size * 2}, {self._room}"
            out.line(f"fit = nibble_rows<{kinds}>(laid, {self._sums}, rows_at, {sizes});")

    @property
    def _sums(self) -> str:
        return f"laid + {self.rows} * depth_count"

    def _of_columns(self, which: int) -> str:
        """Where the factors (0) or summands (1) of columns are."""
        return f"{self._sums} + {(self.rows + which * self._columns) * self._room}"

    def add_up(self) -> None:
        """The sums of a block of columns, to `sum`. Those that are multiplied at once lie far apart, and the
        next block is asked for meanwhile: memory brings several long runs faster than one page.
        """
        out, columns, wide = self.b.out, self._columns, self.b.wide
        spread = wide // columns
        kind, byte = self.b.facts.memory[self.nibbles.byte.buffer], self.nibbles.byte
        numbers = ", ".join(f"{n}.0f" for n in self.scaling.offsets)
        out.line(f"const vf32 table = {{{numbers}}};")
        with out.block(f"for (i64 j = 0; j < index_min({spread}, column_count - column_from); ++j)"):
            out.line(f"f32* const factors = {self._of_columns(0)};")
            out.line(f"f32* const summands = {self._of_columns(1)};")
            out.line(f"const u8* bytes_at[{columns}];")
            with out.block(f"for (i64 beside = 0; beside < {columns}; ++beside)"):
                lane = self.b.operand.axes[-1]
                out.line(
                    f"const i64 {lane} = index_min(column_from + j + beside * {spread}, column_count - 1);"
                )
                for other in self.b.matmul.depth:
                    if other not in (self.group, self.inner):
                        out.line(f"const i64 {other} = 0;")
                out.line(f"const i64 {self.inner} = 0;")
                address = f"{byte.buffer} + {index_text(byte.index, {self.group: '0'})}"
                out.line(f"bytes_at[beside] = (const u8*)({address});")
                self._factors(kind)
            lanes, blocks = min(_LANES, self._size // 4), max(1, self._size // _BYTES)
            kinds = f"{self.rows}, {columns}, {lanes}, {str(self.scaling.moves).lower()}, {self.step}"
            ahead = wide * self._groups * self._size
            parts = f"bytes_at, {ahead}, laid, {self._sums}, depth_count, {blocks}"
            passed = f"factors, summands, {self._room}, table, sum + j, {wide}, {spread}"
            out.line(f"nibble_products<{kinds}>({parts}, {passed});")

    def _factors(self, kind: DType) -> None:
        """What the groups of a column are scaled by, and moved by."""
        out, name, scaling = self.b.out, self.group, self.scaling
        tail = "n" if self._groups % _LANES else None
        with out.block(f"for (i64 {name} = 0; {name} < {self._groups}; {name} += {_LANES})"):
            if tail:
                out.line(f"const i64 n = index_min({_LANES}, {self._groups} - {name});")
            self._ask_ahead()
            to = f"beside * {self._room} + {name}"
            if not scaling.moves:
                bits = scaling.unit
                found = self._weight(kind, bits, "weight", tail)
                out.line(f"store(factors + {to}, mul({found}, splat<Vec>(1.0f / {scaling.numbers[bits]})));")
                return
            least, most = scaling.ends
            low, high = self._weight(kind, least, "least", tail), self._weight(kind, most, "most", tail)
            span = scaling.numbers[most] - scaling.numbers[least]
            out.line(f"store(factors + {to}, mul(sub({high}, {low}), splat<Vec>(1.0f / {span})));")
            out.line(f"store(summands + {to}, {self._weight(kind, scaling.middle, 'middle', tail)});")

    def _ask_ahead(self) -> None:
        """Ask for what scales the same column of the next block: so few bytes of each column that the machine
        does not look ahead, and a sum would wait for them.
        """
        lane = self.b.operand.axes[-1]
        for stmt in self.b.operand.operand.body:
            if not isinstance(stmt, Load) or stmt.buffer == self.nibbles.byte.buffer or stmt.indirect:
                continue
            step = coefficient(stmt.index, lane)
            if isinstance(step, int) and step and self.group in free_axes(stmt.index):
                self.b.out.line(
                    f"__builtin_prefetch({stmt.buffer} + {index_text(stmt.index + step * self.b.wide)});"
                )

    def _weight(self, kind: DType, bits: int, name: str, tail: str | None) -> str:
        """Declare what four bits are in sixteen groups; its name."""
        out, operand = self.b.out, self.b.operand.operand
        instead = self.nibbles.instead[0]
        out.line(f"vf32 {name};")
        with out.block():
            frame = self.b.frame(self.group, 1, tail)
            byte = Value(kind, False, (f"{kind}({bits << self.nibbles.shifts[0]})",))
            for stmt in operand.body:
                target = stmt.targets[0]
                if target in instead:
                    other = instead[target]
                    frame.env[target] = byte if other is None else frame.env[other]
                else:
                    frame.emit(stmt)
            text = frame.text(operand.value, True)
            exact = operand.dtype.compute is DType.f32
            out.line(f"{name} = {text if exact else f'cast<f32>({text})'};")
        return name
