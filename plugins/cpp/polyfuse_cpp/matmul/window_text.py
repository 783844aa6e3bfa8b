"""Operand A of a convolution as C++ text: tiles of rows that are read where they lie, or packed with zeros
beyond the border of the image.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.odometer import advance
from polyfuse_cpp.matmul.operand import OperandText
from polyfuse_cpp.matmul.problem import MatrixOperand
from polyfuse_cpp.matmul.window import Slide, Strip, Window, lanes_of, slide_of, strip_of
from polyfuse_cpp.memory.address import index_text


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
        self.part = lanes_of(self.matmul, self.lanes)
        self.size = self.plan.rows * self.plan.vectors * self.part

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

    @property
    def skips(self) -> bool:
        """Whether passes are left out for which a tile that is packed has nothing."""
        return bool(self.window.mask) and self.tiles

    # What is read.

    def before_tile(self) -> None:
        """Declare whether a tile has a border, and whether it is read in place."""
        out, slide, rows = self.out, self.slide, self.plan.rows
        if self.has_border:
            out.line(f"bool border = {'false' if self.tiles else 'true'};")
        if self.skips:
            out.line("bool empty = true;")
        if slide is None:
            return
        length = index_text(slide.length)
        chunk = self._taps_of(slide, f"(depth_from / ({length}))")
        first = dict.fromkeys(self.matmul.depth, "0") | chunk
        out.line(f"bool inside = rows_here == {rows};")
        out.line(f"const {self.kind}* inside_at = {self.window.load.buffer};")
        out.line(f"i64 lines_apart = {index_text(slide.apart[-1] if slide.apart else 0)};")
        if self.strip is not None:
            out.line(f"i64 line_at = depth_from % ({length}), steps_from = 0, steps_here = depth_here;")
        with out.block("if (inside)"):
            self._start(self.operand.axes, "row_from", fixed=False)
            out.line(f"inside = {slide.along} + {rows - 1} < {index_text(self.facts.sizes[slide.along])};")
            out.line(f"inside_at += {index_text(self.window.load.index, first)};")
            if not self.window.mask and not slide.planes:
                return
            out.line("bool there = inside;")
            if self.window.mask:
                self._corner(dict.fromkeys(self.window.taps, "0"))
                out.line(f"{slide.along} += {rows - 1};")
                self._corner({n: f"{index_text(self.facts.sizes[n])} - 1" for n in self.window.taps})
            together = "there"
            if slide.planes:
                plane = index_text(self.facts.sizes[slide.outer[-1]] * slide.length)
                out.line(
                    f"const bool level = depth_from / ({plane}) == (depth_from + depth_here - 1) / ({plane});"
                )
                together = "there && level"
            if self.strip is None:
                out.line(f"inside = {together};")
            else:
                with out.block(f"if (inside && !({together}))"):
                    if self.window.mask:
                        out.line(f"{slide.along} -= {rows - 1};")
                    self._copy(slide, self.strip)

    def _taps_of(self, slide: Slide, chunk: str) -> dict[str, str]:
        """Texts of the taps that a chunk is made of, by its number."""
        found: dict[str, str] = {}
        for name in reversed(slide.outer):
            size = index_text(self.facts.sizes[name])
            found[name] = chunk if name == slide.outer[0] else f"({chunk} % ({size}))"
            chunk = f"({chunk} / ({size}))"
        return found

    def _copy(self, slide: Slide, strip: Strip) -> None:
        """Copy the pixels under a tile, line by line, and have it read them there."""
        out, length = self.out, index_text(slide.length)
        out.line(f"{self.kind}* to = packed_a;")
        out.line(f"const i64 first_line = depth_from / ({length});")
        out.line("i64 end_line = first_line;")
        with out.block(f"for (i64 line = first_line; line * ({length}) < depth_from + depth_here; ++line)"):
            line, first = self._taps_of(slide, "line"), self._taps_of(slide, "first_line")
            for name in self.window.taps:
                if name != strip.across:
                    out.line(f"const i64 {name} = {line.get(name, '0')};")
            out.line(f"i64 pixel = 0, pixel_end = {strip.pixels};")
            ends = (("pixel", "++pixel"), ("pixel_end - 1", "--pixel_end")) if self.window.mask else ()
            for at, move in ends:
                with out.block(f"for (; pixel < pixel_end; {move})"):
                    out.line(f"const i64 {strip.across} = {at};")
                    out.line(f"if ({self.there()}) break;")
            if self.window.mask:
                # lines beyond the border: before all others they are left out, after them cut off
                with out.block("if (pixel < pixel_end)"):
                    out.line("end_line = line + 1;")
                with out.block("else if (end_line == first_line)"):
                    out.line(f"steps_from = index_min((line + 1) * ({length}) - depth_from, depth_here);")
                    out.line("line_at = 0;")
                    out.line("continue;")
            width = strip.width
            # up to a vector is written behind each part, before the next one is
            out.line(f"matmul_zeros(to, pixel * {width});")
            moved = [
                f"({name} - {first[name]}) * ({index_text(apart)})"
                for name, apart in zip(slide.outer, slide.apart, strict=True)
            ]
            source = " + ".join(["inside_at", *moved, f"pixel * {width}"])
            out.line(f"matmul_row(to + pixel * {width}, {source}, (pixel_end - pixel) * {width});")
            out.line(f"matmul_zeros(to + pixel_end * {width}, ({strip.pixels} - pixel_end) * {width});")
            out.line(f"to += {strip.size};")
        out.line("inside_at = packed_a;")
        out.line(f"lines_apart = {strip.size};")
        if self.window.mask:
            end = f"index_min(end_line * ({length}) - depth_from, depth_here)"
            out.line(f"steps_here = end_line == first_line ? 0 : {end} - steps_from;")
        if self.has_border:
            out.line("border = !there;")

    def _corner(self, taps: dict[str, str]) -> None:
        """Test whether a row's first or last element is there."""
        with self.out.block():
            for name, text in taps.items():
                self.out.line(f"const i64 {name} = {text};")
            self.out.line(f"there = there && {self.there()};")

    def there(self, frame: Frame | None = None) -> str:
        """Text of whether an element is there."""
        frame = frame or self.frame(None)
        for stmt in self.window.conditions:
            frame.emit(stmt)
        return frame.text(self.window.mask, False)

    def row(self) -> None:
        """Pack a row."""
        mark = " border = true;" if self.has_border and self.tiles else ""
        present = f"matmul_row(to + k, {self.window.address}, count);"
        if self.skips:
            present = f"{{ {present} empty = false; }}"
        self._runs(present, f"{{ matmul_zeros(to + k, count);{mark} }}")

    def _runs(self, present: str, absent: str = "") -> None:
        """What is done with each run of a row: `count` elements from the step `k` of a pass on."""
        out, window = self.out, self.window
        run, length = window.run, index_text(window.length)
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

    def sums(self, packed: str, rows: str, fixed: str, columns: str, following: str) -> None:
        """Add up a tile; `packed` does so where it is packed, at `rows`; `fixed` are the other parameters of
        the template, `columns` and `following` say where operand B is, and how far its steps are apart.
        """
        slide, plan, first = self.slide, self.plan, "pass == pass_from"
        there = f"if (!empty || {first}) " if self.skips else ""
        if slide is None:
            self.out.line(there + packed)
            return
        length = index_text(slide.length)
        name = f"matmul_window<{plan.rows}, {plan.vectors}, {self.kind}, {fixed}>"
        # rows that are packed are one chunk, for which the same function serves
        whole = f"{rows}, 0, depth_here, 0, {columns}, {following}, depth_here, sum, {first}"
        at, steps = f"depth_from % ({length})", "depth_here"
        if self.strip is not None:
            at, steps, columns = "line_at", "steps_here", f"{columns} + steps_from * {following}"
        rest = f"{columns}, {following}, {steps}, sum, {first}"
        self.out.line(f"if (inside) {name}(inside_at, {slide.pitch}, {at}, {length}, lines_apart, {rest});")
        with self.out.block("else"):
            self.out.line(f"{there}{name}({whole});")

    def after_sums(self, columns: str, following: str) -> None:
        """Add up the tile again without what lies beyond the border, if that may have made it no number."""
        if not self.has_border:
            return
        out, vectors = self.out, self.plan.vectors
        with out.block(f"if (border && matmul_any_nan<{self.size}>(sum))"):
            out.line(f"matmul_keep<{self.size}>(sum, before, false);")
            with out.block("for (i64 row = 0; row < rows_here; ++row)"):
                self._start(self.operand.axes, "row_from + row")
                wide = vectors * self.part
                at, rest, to = self.window.address, f"{columns} + k * {following}", f"sum + row * {wide}"
                if self.part == self.lanes:
                    add = f"matmul_tile<1, {vectors}, {vectors}, {self.kind}, 1, false, 0>"
                    add += f"({at}, 0, 0, {rest}, {following}, count, {to}, false);"
                else:
                    add = f"matmul_line<{wide}>({at}, {rest}, count, {to});"
                self._runs(add)
