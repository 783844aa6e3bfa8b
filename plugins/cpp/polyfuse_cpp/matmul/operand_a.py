"""The left operand of a product as C++ text: rows of a tile, laid out or read where they are."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.kit import Writer
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.odometer import advance, start_at
from polyfuse_cpp.matmul.plans import ProductPlan, Way
from polyfuse_cpp.matmul.problem import Product
from polyfuse_cpp.memory.address import index_text

__all__ = ["LeftText"]

_PAD = 16
"""Elements behind each row that is laid out: rows do not compete for places in the first cache, and vectors
may be written past the end."""


@dataclass
class LeftText:
    """The left operand.

    It is read where it is if lanes run along a depth that is contiguous in memory (`in_place`). Otherwise it
    is laid out for each tile, or (`at_once`) for all rows before anything else where panels are not laid out
    and few rows are expected.
    """

    product: Product
    plan: ProductPlan
    lanes: int
    out: Writer
    features: set[str]

    def __post_init__(self) -> None:
        side = self.product.left
        self.facts = self.product.facts
        self.dots = self.plan.way is Way.DOTS
        self.in_place = self.dots and side.index is not None and side.step == 1
        self.paired = self.plan.way.paired
        self.at_once = not self.plan.way.blocked and not self.in_place
        if side.index is not None and side.step == 1:
            self.layout = "rows"
        else:
            self.layout = "steps" if self.product.rows_touch and not self.dots else "any"

    # Room for what is laid out.

    @property
    def row(self) -> int:
        """Elements of a row that is laid out for one pass."""
        return self.plan.depth + (2 * _PAD if self.paired else _PAD)

    def room(self) -> str:
        """Elements to keep, as text."""
        if self.in_place:
            return "0"
        if self.dots:
            return f"tile_count * {self.plan.rows} * (depth_count + {2 * _PAD})"
        tile = self.plan.rows * self.row + _PAD
        return f"tile_count * pass_count * {tile}" if self.at_once else str(tile)

    def element(self) -> str:
        """The type of the elements that are read."""
        return str(self.product.left.memory if self.in_place else self.product.dtype)

    def layout_steps(self) -> tuple[str, str]:
        """How far apart rows and steps lie once they are laid out."""
        return ("1", str(self.plan.rows)) if self.layout == "steps" else (str(self.row), "1")

    def operand(self) -> str:
        """Where the rows of the tile at hand lie."""
        if self.paired:
            return "(bf16*)left_room"
        if not self.at_once:
            return "left_room"
        tile = self.plan.rows * self.row + _PAD
        return f"left_room + ((tile - tile_from) * pass_count + pass) * {tile}"

    # Text at its places.

    def before_item(self) -> None:
        """Lay out all rows, where that is done at once."""
        if not self.at_once:
            return
        out, plan = self.out, self.plan
        with out.block("for (i64 tile = tile_from; tile < tile_to; ++tile)"):
            out.line(f"const i64 row_from = tile * {plan.rows};")
            out.line(f"const i64 rows_here = index_min({plan.rows}, row_count - row_from);")
            if self.dots:
                out.line("const i64 depth_from = 0, depth_here = depth_count;")
                self._rows(
                    f"left_room + ((tile - tile_from) * {plan.rows} + row) * (depth_count + {2 * _PAD})"
                )
                return
            with out.block("for (i64 pass = 0; pass < pass_count; ++pass)"):
                out.line("const i64 depth_from = pass * pass_depth;")
                out.line("const i64 depth_here = index_min(pass_depth, depth_count - depth_from);")
                self._tile()

    def before_tile(self) -> None:
        """Lay out the rows of a tile, or say where they are."""
        out, plan = self.out, self.plan
        if self.dots:
            kind = self.element()
            out.line(f"const {kind}* rows_at[{plan.rows}];")
            with out.block(f"for (i64 row = 0; row < {plan.rows}; ++row)"):
                if self.in_place:
                    self._row_axes("row_from + index_min(row, rows_here - 1)")
                    out.line(f"rows_at[row] = {self._address('0')};")
                else:
                    place = f"((tile - tile_from) * {plan.rows} + index_min(row, rows_here - 1))"
                    out.line(f"rows_at[row] = left_room + {place} * (depth_count + {2 * _PAD});")
        elif not self.at_once:
            self._tile()

    # Layouts.

    def _tile(self) -> None:
        """The rows of a tile for one pass."""
        plan, out, side = self.plan, self.out, self.product.left
        if self.paired:
            self._paired_rows()
            return
        if self.layout == "steps":
            self._row_axes("row_from")
            assert side.step is not None
            out.line(
                f"product_steps<{plan.rows}>({self.operand()}, {self._address('depth_from')}, "
                f"{index_text(side.step)}, depth_here, rows_here);"
            )
            return
        # rows that there are not are zero, so that no strange numbers slow the others down
        self._rows(f"{self.operand()} + row * {self.row}")
        with (
            out.block(f"for (i64 row = rows_here; row < {plan.rows}; ++row)"),
            out.block("for (i64 k = 0; k < depth_here; ++k)"),
        ):
            out.line(f"({self.operand()})[row * {self.row} + k] = {self.product.dtype}(0);")

    def _paired_rows(self) -> None:
        out, target = self.out, f"{self.operand()} + row * {self.row}"
        if self.layout == "steps":
            self._row_axes("row_from")
            following = index_text(self.product.left.step or 0)
            out.line(
                f"pair_steps<{self.plan.rows}, {self.row}>({self.operand()}, "
                f"{self._address('depth_from')}, {following}, depth_here, rows_here);"
            )
            return
        with out.block("for (i64 row = 0; row < rows_here; ++row)"):
            self._row_axes("row_from + row")
            out.line(f"pair_row({target}, {self._address('depth_from')}, depth_here);")
        with out.block(f"for (i64 row = rows_here; row < {self.plan.rows}; ++row)"):
            out.line(f"pair_no_row({target}, depth_here);")

    def _rows(self, target: str) -> None:
        """Each row of a tile, to `target`."""
        out = self.out
        with out.block("for (i64 row = 0; row < rows_here; ++row)"):
            self._row_axes("row_from + row")
            out.line(f"{self.product.dtype}* const to = {target};")
            if self.layout == "rows":
                out.line(f"product_row(to, {self._address('depth_from')}, depth_here);")
            else:
                self._computed()

    def _computed(self) -> None:
        """The values of a row, statement by statement: in vectors along the depth where that is one axis."""
        out, facts, product = self.out, self.facts, self.product
        moving = [a for a in product.depth if facts.sizes[a] != 1]
        if len(moving) == 1 and self.lanes > 1:
            name = moving[0]
            self._still(moving)
            end = "depth_from + depth_here"
            out.line(f"i64 {name} = depth_from;")
            for tail in (None, "n"):
                guard = f"{name} + {self.lanes} <= {end}" if tail is None else f"{name} < {end}"
                with out.block(f"for (; {guard}; {name} += {self.lanes})"):
                    if tail:
                        out.line(f"const i64 n = {end} - {name};")
                    frame = self._frame(moving[0], tail)
                    value = self._value(frame)
                    out.line(f"store(to + {name} - depth_from, {value});")
            return
        start_at(product.depth, facts.sizes, "depth_from", out)
        with out.block("for (i64 k = 0; k < depth_here; ++k)"):
            frame = self._frame(None, None)
            out.line(f"to[k] = {self._value(frame)};")
            advance(product.depth, facts.sizes, out)

    def _value(self, frame: Frame) -> str:
        """Text of the operand's value, in the type of the sums."""
        operand, kind = self.product.left.operand, self.product.dtype
        for stmt in operand.body:
            frame.emit(stmt)
        text = frame.text(operand.value, frame.lane is not None)
        return text if operand.dtype.compute is kind else f"cast<{kind}>({text})"

    def _frame(self, lane: str | None, tail: str | None) -> Frame:
        return Frame(
            facts=self.facts, out=self.out, lane=lane, lanes=self.lanes, tail=tail, features=self.features
        )

    def _still(self, moving: list[str]) -> None:
        for name in self.product.depth:
            if name not in moving:
                self.out.line(f"const i64 {name} = 0;")

    def _row_axes(self, position: str) -> None:
        start_at(self.product.left.axes, self.facts.sizes, position, self.out, fixed=True)

    def _address(self, depth: str) -> str:
        """Where the row at hand is at some step; for an operand that is a plain load."""
        side = self.product.left
        assert side.index is not None
        names = {a: depth if self.facts.sizes[a] != 1 else "0" for a in self.product.depth}
        return f"{side.buffer} + {index_text(side.index, names)}"
