"""What the texts of both operands of a matmul share: loops over a depth, addresses, computed values, and sums
without what is beyond the border of an image.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

from polyfuse.ir.statements import Constant, Load
from polyfuse.kit import Writer, backward_slice
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.odometer import advance, start_at
from polyfuse_cpp.matmul.paths import MatmulPlan
from polyfuse_cpp.matmul.problem import Matmul, MatrixOperand
from polyfuse_cpp.memory.address import index_text


@dataclass
class OperandText:
    """One operand in the text of a matmul."""

    matmul: Matmul
    plan: MatmulPlan
    lanes: int
    out: Writer
    features: set[str]

    def __post_init__(self) -> None:
        self.facts = self.matmul.facts
        self.paired = self.plan.path.paired

    @property
    def operand(self) -> MatrixOperand:
        """The operand."""
        raise NotImplementedError

    def _start(self, axes: tuple[str, ...], position: str, *, fixed: bool = True) -> None:
        start_at(axes, self.facts.sizes, position, self.out, fixed=fixed)

    def _address(self, depth: str, column: str = "") -> str:
        """Where an operand that is a plain load is, at some step of the depth (and column)."""
        operand = self.operand
        assert operand.index is not None
        # where the depth has several axes, they lie one inside the other: the last one counts on
        names = dict.fromkeys(self.matmul.depth, "0")
        names |= dict.fromkeys(self.matmul.moving_depth[-1:], depth)
        if column:
            names[operand.axes[-1]] = column
        return f"{operand.buffer} + {index_text(operand.index, names)}"

    def frame(self, lane: str | None, copies: int = 1, tail: str | None = None) -> Frame:
        """A level of the loop nest around statements."""
        return Frame(
            facts=self.facts,
            out=self.out,
            lane=lane,
            lanes=self.lanes,
            copies=copies,
            tail=tail,
            features=self.features,
        )

    def _values(self, lane: str | None, copies: int = 1, tail: str | None = None) -> list[str]:
        """Text of computed values, in the type of the sums."""
        computed, kind = self.operand.operand, self.matmul.dtype
        frame = self.frame(lane, copies, tail)
        for stmt in computed.body:
            frame.emit(stmt)
        texts = [frame.text(computed.value, lane is not None, copy) for copy in range(copies)]
        return texts if computed.dtype.compute is kind else [f"cast<{kind}>({t})" for t in texts]

    # Elements that are not there.

    @property
    def mask(self) -> str:
        """The name of the condition under which an element is loaded and is zero otherwise; "" for others."""
        computed = self.operand.operand
        load = computed.body[-1]
        if not isinstance(load, Load) or load.mask is None or load.target != computed.value:
            return ""
        other = self.facts.definition(load.other or "")
        return load.mask if isinstance(other, Constant) and other.value == 0 else ""

    def there(self, frame: Frame | None = None) -> str:
        """Text of whether an element is there, at a position on all axes; `frame` has what is known."""
        frame = frame or self.frame(None)
        for stmt in backward_slice(self.operand.operand.body[:-1], [self.mask]):
            if stmt.targets[0] not in frame.env:
                frame.emit(stmt)
        return frame.text(self.mask, False)


@dataclass
class BorderText:
    """Sums of which some products count for nothing: the zeros that stand for what is beyond a border make no
    number with an infinite weight. Where a tile has such sums, it is added up again.

    Attributes:
        masked: the operands that have such zeros, of which operand B is packed.
        wide: columns of a tile.
        a, b: texts of an element of each operand: row `row` and column `j` of a tile, step `k` of a pass.
    """

    masked: tuple[OperandText, ...]
    wide: int
    a: str
    b: str

    @property
    def _one(self) -> OperandText:
        return self.masked[0]

    @property
    def _keeps(self) -> bool:
        """Whether there may be several passes, so that sums of those before are needed."""
        extents = [self._one.facts.sizes[name] for name in self._one.matmul.depth]
        depth = prod(size for size in extents if isinstance(size, int))
        return depth > self._one.plan.depth or not all(isinstance(size, int) for size in extents)

    def before_sums(self) -> None:
        """Keep the sums of a tile as they are before a pass."""
        out, size = self._one.out, self._one.plan.rows * self.wide
        out.line("bool again = false;")
        if self._keeps:
            out.line(f"{self._one.matmul.dtype} before[{size}];")
            out.line(f"matmul_keep<{size}>(before, sum, pass == pass_from);")

    def look(self, vectors: int) -> None:
        """Note whether one of so many vectors of sums in each row is no number."""
        rows, columns = self._one.plan.rows, vectors * self._one.lanes
        if columns == self.wide:
            self._one.out.line(f"again = matmul_any_nan<{rows * columns}>(sum);")
        else:
            each = f"again = again || matmul_any_nan<{columns}>(sum + row * {self.wide});"
            self._one.out.line(f"for (int row = 0; row < {rows}; ++row) {each}")

    def after_sums(self) -> None:
        """Add up the tile again where it has a sum that is no number."""
        matmul, out, wide = self._one.matmul, self._one.out, self.wide
        lane = matmul.b.axes[-1]
        with ExitStack() as blocks:
            enter = blocks.enter_context
            enter(out.block("if (again)"))
            out.line(f"const i64 columns_here = index_min({wide}, column_count - column_from);")
            enter(out.block("for (i64 row = 0; row < rows_here; ++row)"))
            start_at(matmul.a.axes, matmul.facts.sizes, "row_from + row", out, fixed=True)
            enter(out.block("for (i64 j = 0; j < columns_here; ++j)"))
            out.line(f"const i64 {lane} = column_from + j;")
            start = f"before[row * {wide} + j]" if self._keeps else "0"
            out.line(f"{matmul.dtype} total = {start};")
            start_at(matmul.depth, matmul.facts.sizes, "depth_from", out)
            with out.block("for (i64 k = 0; k < depth_here; ++k)"):
                with out.block():
                    frame = self._one.frame(None)  # masks of both operands may have values in common
                    there = " && ".join(side.there(frame) for side in self.masked)
                    out.line(f"if ({there}) total = add_product({self.a}, {self.b}, total);")
                advance(matmul.depth, matmul.facts.sizes, out)
            out.line(f"sum[row * {wide} + j] = total;")
