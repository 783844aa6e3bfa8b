"""Operand A of a convolution as C++ text: tiles of rows that are read where they lie, or packed with zeros
beyond the border of the image.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse_cpp.loops.odometer import advance
from polyfuse_cpp.matmul.operand import OperandText
from polyfuse_cpp.matmul.problem import MatrixOperand
from polyfuse_cpp.matmul.window import Slide, Strip, Window, slide_of, strip_of
from polyfuse_cpp.memory.address import index_text

__all__ = ["WindowText"]


@dataclass
class WindowText(OperandText):
    """A window. `tiles`: whether each tile is packed by itself, which it need not be where it lies in one
    line of the image (`slide`): it is read in place if all of it is there, and otherwise from a copy of
    the pixels under it (`strip`).
    """

    window: Window
    tiles: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        self.slide = slide_of(self.matmul, self.window, self.plan.rows) if self.tiles else None
        self.strip = self._strip()
        self.kind = self.matmul.dtype
        self.size = self.plan.rows * self.plan.vectors * self.lanes

    def _strip(self) -> Strip | None:
        slide, plan = self.slide, self.plan
        if slide is None:
            return None
        return strip_of(self.matmul, self.window, slide, plan.rows, plan.depth)

    @property
    def operand(self) -> MatrixOperand:
        """Operand A."""
        return self.matmul.a

    @property
    def room(self) -> int:
        """Elements of a copy."""
        return self.strip.lines * self.strip.size if self.strip else 0

    @property
    def has_border(self) -> bool:
        """Whether some elements are zero because nothing is there. Weights do not count there, either, even
        if they are infinite.
        """
        return bool(self.window.mask) and self.kind.is_float

    # What is read.

    def before_tile(self) -> None:
        """Declare whether a tile has a border, and whether it is read in place."""
        out, slide, rows = self.out, self.slide, self.plan.rows
        if self.has_border:
            out.line(f"bool border = {'false' if self.tiles else 'true'};")
        if slide is None:
            return
        chunk = f"(depth_from / ({index_text(slide.length)}))" if slide.outer else "0"
        first = dict.fromkeys(self.matmul.depth, "0") | ({slide.outer: chunk} if slide.outer else {})
        out.line(f"bool inside = rows_here == {rows};")
        out.line(f"const {self.kind}* inside_at = {self.window.load.buffer};")
        out.line(f"i64 lines_apart = {index_text(slide.apart)};")
        with out.block("if (inside)"):
            self._start(self.operand.axes, "row_from", fixed=False)
            out.line(f"inside = {slide.along} + {rows - 1} < {index_text(self.facts.sizes[slide.along])};")
            out.line(f"inside_at += {index_text(self.window.load.index, first)};")
            if self.window.mask:
                out.line("bool there = inside;")
                self._corner(dict.fromkeys(self.window.taps, "0"))
                out.line(f"{slide.along} += {rows - 1};")
                self._corner({n: f"{index_text(self.facts.sizes[n])} - 1" for n in self.window.taps})
                if self.strip is None:
                    out.line("inside = there;")
                else:
                    with out.block("if (inside && !there)"):
                        out.line(f"{slide.along} -= {rows - 1};")
                        self._copy(slide, self.strip)

    def _copy(self, slide: Slide, strip: Strip) -> None:
        """Copy the pixels under a tile, line by line, and have it read them there."""
        out, length = self.out, index_text(slide.length)
        out.line(f"{self.kind}* to = packed_a;")
        out.line(f"const i64 first_line = depth_from / ({length});")
        with out.block(f"for (i64 line = first_line; line * ({length}) < depth_from + depth_here; ++line)"):
            for name in self.window.taps:
                if name != strip.across:
                    out.line(f"const i64 {name} = {'line' if name == slide.outer else '0'};")
            out.line(f"i64 pixel = 0, pixel_end = {strip.pixels};")
            for at, move in (("pixel", "++pixel"), ("pixel_end - 1", "--pixel_end")):
                with out.block(f"for (; pixel < pixel_end; {move})"):
                    out.line(f"const i64 {strip.across} = {at};")
                    out.line(f"if ({self.there()}) break;")
            width = strip.width
            # up to a vector is written behind each part, before the next one is
            out.line(f"matmul_zeros(to, pixel * {width});")
            source = f"inside_at + (line - first_line) * lines_apart + pixel * {width}"
            out.line(f"matmul_row(to + pixel * {width}, {source}, (pixel_end - pixel) * {width});")
            out.line(f"matmul_zeros(to + pixel_end * {width}, ({strip.pixels} - pixel_end) * {width});")
            out.line(f"to += {strip.size};")
        out.line("inside_at = packed_a;")
        out.line(f"lines_apart = {strip.size};")
        if self.has_border:
            out.line("border = true;")

    def _corner(self, taps: dict[str, str]) -> None:
        """Test whether a row's first or last element is there."""
        with self.out.block():
            for name, text in taps.items():
                self.out.line(f"const i64 {name} = {text};")
            self.out.line(f"there = there && {self.there()};")

    def there(self) -> str:
        """Text of whether an element is there."""
        frame = self.frame(None)
        for stmt in self.window.conditions:
            frame.emit(stmt)
        return frame.text(self.window.mask, False)

    def row(self) -> None:
        """Pack a row."""
        mark = " border = true;" if self.has_border and self.tiles else ""
        present = f"matmul_row(to + k, {self.window.address}, count);"
        self._runs(present, f"{{ matmul_zeros(to + k, count);{mark} }}")

    def _runs(self, present: str, absent: str = "") -> None:
        """What is done with each run of a row: `count` elements from the step `k` of a pass on."""
        out, window = self.out, self.window
        run, length = window.run, index_text(self.facts.sizes[window.run])
        self._start(window.taps, f"depth_from / ({length})", fixed=False)
        out.line(f"i64 {run} = depth_from % ({length});")
        with out.block("for (i64 k = 0; k < depth_here;)"):
            out.line(f"const i64 count = index_min({length} - {run}, depth_here - k);")
            test = f"if ({self.there()}) " if window.mask else ""
            out.line(f"{test}{present}")
            if test and absent:
                out.line(f"else {absent}")
            out.line("k += count;")
            out.line(f"{run} = 0;")
            advance(window.taps, self.facts.sizes, out)

    # Sums.

    def before_sums(self) -> None:
        """Keep the sums of a tile as they are before a pass."""
        if self.has_border:
            self.out.line(f"{self.kind} before[{self.size}];")
            self.out.line(f"if (border) matmul_keep<{self.size}>(before, sum, pass == pass_from);")

    def sums(self, packed: str, fixed: str, rest: str) -> None:
        """Add up a tile; `packed` does so where it is packed, `fixed` and `rest` are the other parameters of
        the template and of the call.
        """
        slide, plan = self.slide, self.plan
        if slide is None:
            self.out.line(packed)
            return
        length = index_text(slide.length)
        name = f"matmul_window<{plan.rows}, {plan.vectors}, {self.kind}, {slide.pitch}, {fixed}>"
        lies = f"depth_from % ({length}), {length}, lines_apart"
        self.out.line(f"if (inside) {name}(inside_at, {lies}, {rest}")
        self.out.line(f"else {packed}")

    def after_sums(self, columns: str, following: str) -> None:
        """Add up the tile again without what lies beyond the border, if that may have made it no number."""
        if not self.has_border:
            return
        out, vectors = self.out, self.plan.vectors
        with out.block(f"if (border && matmul_any_nan<{self.size}>(sum))"):
            out.line(f"matmul_keep<{self.size}>(sum, before, false);")
            with out.block("for (i64 row = 0; row < rows_here; ++row)"):
                self._start(self.operand.axes, "row_from + row")
                add = f"matmul_tile<1, {vectors}, {self.kind}, 1, 1, false, 0>({self.window.address}, "
                add += f"{columns} + k * {following}, {following}, count, "
                add += f"sum + row * {vectors * self.lanes}, false);"
                self._runs(add)
