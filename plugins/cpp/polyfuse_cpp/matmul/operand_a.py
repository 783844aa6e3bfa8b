"""Operand A of a matmul as C++ text: the rows of a tile, packed or read in place."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.kit import is_multiple
from polyfuse.symbolic import product
from polyfuse_cpp.loops.odometer import advance
from polyfuse_cpp.matmul.operand import OperandText
from polyfuse_cpp.matmul.paths import TILE
from polyfuse_cpp.matmul.plans import most_varying
from polyfuse_cpp.matmul.problem import MatrixOperand, whole_tiles
from polyfuse_cpp.matmul.touched import common_pitch
from polyfuse_cpp.matmul.window import window_of
from polyfuse_cpp.matmul.window_text import WindowText
from polyfuse_cpp.memory.address import index_text

_PAD = 16
"""Elements behind each packed row: rows do not compete for sets of the L1 cache, and vectors may be written
past the end."""

_PAGE, _WAYS = 4096, 6
"""Bytes after which addresses share a set of the L1 cache, and rows that find room there with what else is
read."""


@dataclass
class OperandAText(OperandText):
    """Operand A.

    It is read in place if lanes run along a depth that is contiguous in memory (`in_place`), and where the
    rows of a tile, each of them contiguous, are one distance apart (`pitch`). Otherwise it is packed for each
    tile, or (`at_once`) for all rows first where B is not packed and few rows are expected. Where columns
    are the rows of matrix registers, these rows are packed as columns (`across`).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        side = self.operand
        self.dots = self.plan.path.along_depth
        self.across = self.plan.turns
        self.shared = ""  # where threads find all rows packed as columns, if that was done before
        self.in_place = self.dots and side.index is not None and side.step == 1
        self.pitch = self._pitch()
        self.at_once = not self.plan.path.blocked and not self.in_place and not self.pitch
        self.window = self._window()
        if side.index is not None and side.step == 1:
            self.layout = "rows"
        elif self.window is not None:
            self.layout = "runs"
        else:
            self.layout = "steps" if self.matmul.rows_touch and not self.dots else "any"

    @property
    def tile_rows(self) -> str:
        """Rows of a tile, as text: where few are counted at run time, tiles are as even as they can be."""
        return "tile_rows" if most_varying(self.matmul, self.plan.path) else str(self.plan.rows)

    @property
    def operand(self) -> MatrixOperand:
        """Operand A."""
        return self.matmul.a

    def _pitch(self) -> int:
        """Elements from one row to the next, where tiles are read in place; else 0."""
        side = self.operand
        if self.dots or side.index is None or side.step != 1:
            return 0
        if self.paired and not (self.plan.path.tiles and whole_tiles(self.matmul)):
            return 0
        if not self.paired and side.memory is not self.matmul.dtype:
            return 0
        pitch = common_pitch(side.index, side.axes, self.matmul)
        # lines of rows that lie a page apart compete for one set of the L1 cache
        crowded = pitch * side.memory.itemsize % _PAGE == 0 and self.plan.rows > _WAYS
        return 0 if crowded or pitch <= 0 else pitch

    def _window(self) -> WindowText | None:
        """What is done where the operand is a window; rows that are contiguous as a whole need nothing."""
        contiguous = self.operand.index is not None and self.operand.step == 1
        found = None if self.dots or self.paired or contiguous else window_of(self.matmul)
        if found is None:
            return None
        return WindowText(
            self.matmul, self.plan, self.lanes, self.out, self.features, found, not self.at_once
        )

    @property
    def whole(self) -> bool:
        """Whether all tiles are known to have all their rows."""
        return is_multiple(product(self.facts.sizes[a] for a in self.operand.axes), self.plan.rows)

    @property
    def lines(self) -> int:
        """Lines of the image that are copied for a pass, which is so many whole ones; 0 if none are."""
        strip = self.window.strip if self.window is not None else None
        return strip.lines if strip is not None and strip.whole else 0

    # Room for what is packed.

    @property
    def row(self) -> int:
        """Elements of a row that is packed for one pass."""
        return self.plan.depth + (2 * _PAD if self.paired else _PAD)

    def room(self) -> str:
        """Elements to keep, as text."""
        if self.shared:
            return "0"
        if self.across:
            return f"tile_count * pass_count * {self._across_part}"
        if self.in_place:
            return "0"
        if self.dots:
            return f"tile_count * {self.plan.rows} * (depth_count + {2 * _PAD})"
        tile = self.plan.rows * self.row + _PAD
        if self.at_once:
            return f"tile_count * pass_count * {tile}"
        return str(max(tile, self.window.room + _PAD if self.window is not None else 0))

    def element(self) -> str:
        """The type of the elements that are read."""
        return str(self.operand.memory if self.in_place else self.matmul.dtype)

    def layout_steps(self) -> tuple[str, str]:
        """Steps in elements between packed rows, and between steps of the depth."""
        return ("1", str(self.plan.rows)) if self.layout == "steps" else (str(self.row), "1")

    def rows_at(self) -> str:
        """Where the rows of the current tile are."""
        if self.paired:
            return "(bf16*)packed_a"
        if not self.at_once:
            return "packed_a"
        tile = self.plan.rows * self.row + _PAD
        return f"packed_a + ((tile - tile_from) * pass_count + pass) * {tile}"

    def across_at(self, tile: str) -> str:
        """Where the rows of a tile are, in pairs as columns of a right operand."""
        if self.shared:
            return f"{self.shared} + ({tile} * depth_count + depth_from) * {self.plan.rows}"
        return f"(bf16*)(packed_a + (({tile} - tile_from) * pass_count + pass) * {self._across_part})"

    def row_at(self, row: str) -> str:
        """Where a row that is read in place is, from the step `depth_from` on; declares its position."""
        self._row_axes(row)
        return self._address("depth_from")

    @property
    def _across_part(self) -> int:
        """Room for the rows of a tile in one pass, packed as columns, in numbers of 4 bytes."""
        return self.plan.depth * self.plan.rows // 2 + _PAD

    def _rows_across(self) -> None:
        """All rows of the tiles at hand as columns."""
        out, side = self.out, self.operand
        assert side.index is not None
        with (
            out.block("for (i64 tile = tile_from; tile < tile_to; ++tile)"),
            out.block("for (i64 pass = 0; pass < pass_count; ++pass)"),
        ):
            out.line("const i64 depth_from = pass * pass_depth;")
            out.line("const i64 depth_here = index_min(pass_depth, depth_count - depth_from);")
            out.line(f"const i64 row_from = tile * {self.plan.rows};")
            self._row_axes("row_from")
            apart = common_pitch(side.index, side.axes, self.matmul)
            at = f"{self._address('depth_from')}, {apart}, depth_here, row_count - row_from"
            out.line(f"pair_across<{self.plan.rows // TILE}>({self.across_at('tile')}, {at});")

    # Parts of the loop nest.

    def before_item(self) -> None:
        """Pack all rows, where that is done at once."""
        if self.shared:
            return
        if self.across:
            self._rows_across()
            return
        if not self.at_once:
            return
        out, plan = self.out, self.plan
        with out.block("for (i64 tile = tile_from; tile < tile_to; ++tile)"):
            out.line(f"const i64 row_from = tile * {self.tile_rows};")
            out.line(f"const i64 rows_here = index_min({self.tile_rows}, row_count - row_from);")
            if self.dots:
                out.line("const i64 depth_from = 0, depth_here = depth_count;")
                self._rows(
                    f"packed_a + ((tile - tile_from) * {plan.rows} + row) * (depth_count + {2 * _PAD})"
                )
                return
            with out.block("for (i64 pass = 0; pass < pass_count; ++pass)"):
                out.line("const i64 depth_from = pass * pass_depth;")
                out.line("const i64 depth_here = index_min(pass_depth, depth_count - depth_from);")
                self._tile()

    def before_tile(self) -> None:
        """Pack the rows of a tile, or declare where they are."""
        out, plan, side = self.out, self.plan, self.operand
        if self.across:
            return
        if self.dots:
            kind = self.element()
            out.line(f"const {kind}* rows_at[{plan.rows}];")
            with out.block(f"for (i64 row = 0; row < {plan.rows}; ++row)"):
                if self.in_place:
                    self._row_axes("row_from + index_min(row, rows_here - 1)")
                    out.line(f"rows_at[row] = {self._address('0')};")
                else:
                    position = f"((tile - tile_from) * {plan.rows} + index_min(row, rows_here - 1))"
                    out.line(f"rows_at[row] = packed_a + {position} * (depth_count + {2 * _PAD});")
        elif self.pitch:
            out.line(f"const {side.memory}* left_at;")
            with out.block():
                self._row_axes("row_from")
                out.line(f"left_at = {self._address('depth_from')};")
            if not self.whole:
                with out.block(f"if (rows_here < {plan.rows})"):
                    self._tile()
        elif self.window is not None:
            self.window.before_tile()
            if not self.at_once:
                with out.block("if (!inside)" if self.window.slide is not None else ""):
                    self._tile()
        elif not self.at_once:
            self._tile()

    def fetched(self) -> str:
        """How far behind a tile that is read in place lie the rows of the next one, for which the first block
        asks; 0 for others.
        """
        ahead, wide = self.plan.rows * self.pitch, self.plan.vectors * self.lanes
        *outer, last = (self.facts.sizes[axis] for axis in self.matmul.b.axes)
        if all(size == 1 for size in outer) and isinstance(last, int) and last <= wide:
            return str(ahead)
        return f"(block == block_a ? {ahead} : 0)"

    # Layouts.

    def _tile(self) -> None:
        """The rows of a tile for one pass."""
        plan, out, side = self.plan, self.out, self.matmul.a
        if self.paired:
            self._paired_rows()
            return
        if self.layout == "steps":
            self._row_axes("row_from")
            assert side.step is not None
            out.line(
                f"matmul_steps<{plan.rows}>({self.rows_at()}, {self._address('depth_from')}, "
                f"{index_text(side.step)}, depth_here, rows_here);"
            )
            return
        # missing rows are zero: denormal numbers would slow the others down
        self._rows(f"{self.rows_at()} + row * {self.row}")
        with (
            out.block(f"for (i64 row = rows_here; row < {plan.rows}; ++row)"),
            out.block("for (i64 k = 0; k < depth_here; ++k)"),
        ):
            out.line(f"({self.rows_at()})[row * {self.row} + k] = {self.matmul.dtype}(0);")

    def _paired_rows(self) -> None:
        out, target = self.out, f"{self.rows_at()} + row * {self.row}"
        if self.layout == "steps":
            self._row_axes("row_from")
            following = index_text(self.operand.step or 0)
            out.line(
                f"pair_steps<{self.plan.rows}, {self.row}>({self.rows_at()}, "
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
            out.line(f"{self.matmul.dtype}* const to = {target};")
            if self.layout == "rows":
                out.line(f"matmul_row(to, {self._address('depth_from')}, depth_here);")
            elif self.window is not None:
                self.window.row()
            else:
                self._computed()

    def _computed(self) -> None:
        """The values of a row, statement by statement: in vectors along the depth where that is one axis."""
        out, sizes, depth = self.out, self.facts.sizes, self.matmul.depth
        moving = [a for a in depth if sizes[a] != 1]
        if len(moving) == 1 and self.lanes > 1:
            name, end = moving[0], "depth_from + depth_here"
            for other in depth:
                if other != name:
                    out.line(f"const i64 {other} = 0;")
            out.line(f"i64 {name} = depth_from;")
            for tail in (None, "n"):
                guard = f"{name} + {self.lanes} <= {end}" if tail is None else f"{name} < {end}"
                with out.block(f"for (; {guard}; {name} += {self.lanes})"):
                    if tail:
                        out.line(f"const i64 n = {end} - {name};")
                    out.line(f"store(to + {name} - depth_from, {self._values(name, 1, tail)[0]});")
            return
        self._start(depth, "depth_from", fixed=False)
        with out.block("for (i64 k = 0; k < depth_here; ++k)"):
            out.line(f"to[k] = {self._values(None)[0]};")
            advance(depth, sizes, out)

    def _row_axes(self, position: str) -> None:
        self._start(self.operand.axes, position)
