"""Convolutions under windows as C++ text, multiplied in matrix registers from a padded copy of the image.

    for every part of the results that a thread has
      for some tiles of rows of an image
        copy the lines of the image that they read, with zeros beyond its border
        for every block of columns, for every one of the tiles: add up, and finish what is there

A row is a pixel of the copy from which a window begins. Those behind the end of a line of the result have
sums, too, with which nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from polyfuse.plugin import Source
from polyfuse_cpp.loops.entry import function
from polyfuse_cpp.loops.odometer import start_at
from polyfuse_cpp.matmul.kernel import TILES_AHEAD, MatmulText, declare_part
from polyfuse_cpp.matmul.tiled.padded import Padded, Slope, padded_of
from polyfuse_cpp.memory.address import index_text

_COPIED = 128 << 10
"""Elements of the image that are copied at once: they stay in the second cache, beside a block of the weight.
"""

_TILES_BESIDE = 4
"""Tiles with which a block of the weight is multiplied at least before the next one."""

_LINES = 4
"""Lines of the result for which lines of the image are copied at least, where these are long."""

_PART_LINES = 8
"""Lines of the result in a part of a thread's, at least: each part copies those beyond its edges, too."""


@dataclass
class TiledWindowText(MatmulText):
    """A convolution of all channels under a window."""

    def __post_init__(self) -> None:
        super().__post_init__()
        found = padded_of(self.matmul)
        assert found is not None
        self.padded: Padded = found
        self.touched = ()
        # pixels of a line that a window spans beyond its first one, and lines that several results read
        self.reach = (found.along.taps - 1) * found.along.apart
        self.phases = {p: found.down.further(p) for p in found.down.phases}

    # Extents.

    def _count(self, slope: Slope) -> str:
        """How many results an axis has, as text."""
        return index_text(self.facts.sizes[slope.row]) if slope.row else "1"

    def _extents(self) -> None:
        out, padded, plan = self.out, self.padded, self.plan
        step, wide = padded.along.step, self.wide
        out.line(f"const i64 column_count = {index_text(self.facts.sizes[self.matmul.b.axes[-1]])};")
        out.line(f"const i64 depth_count = {padded.depth};")
        out.line(f"const i64 down_count = {self._count(padded.down)};")
        out.line(f"const i64 along_count = {self._count(padded.along)};")
        out.line(f"const i64 line_pixels = (along_count - 1) * {step} + {self.reach + 1};")
        out.line(f"const i64 line_rows = (line_pixels + {step - 1}) / {step};")
        out.line("const i64 row_count = (down_count - 1) * line_rows + along_count;")
        out.line(f"const i64 image_tiles = (row_count + {plan.rows - 1}) / {plan.rows};")
        out.line(f"const i64 tile_count = ({self._size(padded.outer)}) * image_tiles;")
        out.line(f"const i64 across_count = (column_count + {wide - 1}) / {wide};")
        out.line("const i64 block_count = across_count;")
        out.line("const i64 batch_count = 1;")

    def _band(self) -> None:
        """Declare how many tiles of an image are done with one copy, and what that takes."""
        out, padded = self.out, self.padded
        out.line(f"const i64 line_size = line_rows * {padded.along.step * padded.width};")
        lines = f"{_COPIED} / (line_size * {len(self.phases)}) - {max(self.phases.values())}"
        out.line(f"const i64 band_lines = index_min(down_count, index_max({_LINES}, {lines}));")
        tiles = f"(band_lines * line_rows + {self.plan.rows - 1}) / {self.plan.rows}"
        out.line(f"const i64 band_tiles = index_max(1, {tiles});")
        most = f"(band_tiles * {self.plan.rows} + line_rows - 2) / line_rows + 1"
        out.line(f"const i64 most_lines = index_min(down_count, {most}) + {max(self.phases.values())};")
        out.line("const i64 plane_size = most_lines * line_size;")
        tile = self.plan.rows * padded.along.step * padded.width * len(self.phases)
        out.line(f"const i64 group_tiles = {max(_TILES_BESIDE, _COPIED // tile)};")

    def _divide(self) -> None:
        """Parts that are smaller than a thread's share, as far as their copies do not overlap much."""
        out, rows = self.out, self.plan.rows
        out.line("matmul_parts parts = matmul_share(batch_count, tile_count, block_count, team, 0);")
        out.line("const i64 each = parts_for(team, batch_count * tile_count * block_count, work) / team;")
        tiles = f"(line_rows * {_PART_LINES} + {rows - 1}) / {rows}"
        out.line(f"parts.tiles = index_max(1, index_min(each, tile_count / parts.down / ({tiles})));")

    # The part of one thread.

    def _thread(self) -> None:
        out, plan, padded, kind = self.out, self.plan, self.padded, self.matmul.dtype
        with function(self.matmul.kernel, f"{Source.SYMBOL}_run", self._shares(), out):
            self._extents()
            self._band()
            if self.tables:
                out.line(f"const i64 table_length = across_count * {self.wide};")
            # rows of the last tile may lie behind the last line
            behind = plan.rows * padded.along.step * padded.width + padded.chunk
            out.line(f"const i64 copy_size = {len(self.phases)} * plane_size + {behind};")
            out.line(f"const i64 weight_size = {self._weight_size()};")
            tables = f"{len(self.tables.names)} * table_length" if self.tables else "0"
            floats = f"({self.tile_size} + {tables}) * {kind.itemsize}"
            room = f"{floats} + (copy_size + weight_size) * 2 + 64"
            out.line(f"{kind}* const sums = ({kind}*)matmul_scratch({room});")
            self._fill_tables(f"sums + {self.tile_size}")
            out.line(f"bf16* const weight = (bf16*)((char*)sums + ({floats} + 63) / 64 * 64);")
            out.line("bf16* const copy = weight + weight_size;")
            out.line(f"matrix_zeros(copy + {len(self.phases)} * plane_size, {behind});")
            if padded.own_weight:
                self._pack_weight()
            self._taps()
            out.line(f"matrix_begin<{padded.steps}>();")
            with out.block("for (i64 item = first_item; item < end_item; ++item)"):
                self._item()
            out.line("matrix_end();")

    def _weight_size(self) -> str:
        if not self.padded.own_weight:
            return "0"
        return f"across_count * {(self.padded.depth * self.wide + 31) // 32 * 32}"

    def _pack_weight(self) -> None:
        """Pack all blocks of the weight, with zeros for columns and channels that are not there."""
        out, padded, side = self.out, self.padded, self.matmul.b
        lane = side.axes[-1]
        out.line("matrix_zeros(weight, weight_size);")
        for name in side.axes[:-1]:
            out.line(f"const i64 {name} = 0;")
        with out.block(f"for (i64 {lane} = 0; {lane} < column_count; ++{lane})"):
            block = (padded.depth * self.wide + 31) // 32 * 32
            out.line(f"bf16* const to = weight + {lane} / {self.wide} * {block} + {lane} % {self.wide} * 2;")
            for name in self.matmul.depth:
                if name not in (padded.down.tap, padded.along.tap, padded.run):
                    out.line(f"const i64 {name} = 0;")
            taps = [(s.tap, s.taps) for s in (padded.down, padded.along) if s.tap]
            for name, count in taps:
                out.line(f"for (i64 {name} = 0; {name} < {count}; ++{name})")
            with out.block(f"for (i64 {padded.run} = 0; {padded.run} < {padded.channels}; ++{padded.run})"):
                step = self._step_of(padded.down.tap or "0", padded.along.tap or "0", padded.run)
                out.line(f"const i64 k = {step};")
                assert side.index is not None
                out.line(f"to[k / 2 * {2 * self.wide} + k % 2] = {side.buffer}[{index_text(side.index)}];")

    def _step_of(self, down: str, along: str, channel: str) -> str:
        """The step of the depth in the order of the copy."""
        return f"(({down}) * {self.padded.along.taps} + ({along})) * {self.padded.width} + {channel}"

    def _taps(self) -> None:
        """Declare where chunks of the depth are in the copy."""
        padded, found = self.padded, []
        merged = padded.along.apart == 1
        planes = list(self.phases)
        for down in range(padded.down.taps):
            pixel = down * padded.down.apart
            line, plane = pixel // padded.down.step, planes.index(pixel % padded.down.step)
            for along in range(1 if merged else padded.along.taps):
                at = along * padded.along.apart * padded.width
                found.append(f"{plane} * plane_size + {line} * line_size + {at}")
        self.chunks = len(found)
        self.out.line(f"const i64 chunks_at[{self.chunks}] = {{{', '.join(found)}}};")

    def _item(self) -> None:
        out, plan, padded = self.out, self.plan, self.padded
        declare_part(out)
        for name in (*self.matmul.batch, *self.matmul.b.axes[:-1]):
            out.line(f"const i64 {name} = 0;")
        out.line("i64 tile_e = tile_from;")
        with out.block("for (i64 tile_a = tile_from; tile_a < tile_to; tile_a = tile_e)"):
            out.line("const i64 image = tile_a / image_tiles, first_tile = image * image_tiles;")
            out.line("tile_e = index_min(index_min(tile_to, first_tile + image_tiles), tile_a + band_tiles);")
            start_at(padded.outer, self.facts.sizes, "image", out, fixed=True)
            out.line(f"const i64 first_line = (tile_a - first_tile) * {plan.rows} / line_rows;")
            end = f"index_min((tile_e - first_tile) * {plan.rows}, row_count)"
            out.line(f"const i64 line_count = ({end} - 1) / line_rows + 1 - first_line;")
            self._copy()
            # of a long line, no more tiles than the second cache holds for all blocks
            with out.block("for (i64 tile_g = tile_a; tile_g < tile_e; tile_g += group_tiles)"):
                out.line("const i64 tile_h = index_min(tile_e, tile_g + group_tiles);")
                with out.block("for (i64 block = block_from; block < block_to; ++block)"):
                    out.line(f"const i64 column_from = block * {self.wide};")
                    with out.block("for (i64 tile = tile_g; tile < tile_h; ++tile)"):
                        self._tile()

    # The copy.

    def _copy(self) -> None:
        out, padded = self.out, self.padded
        down, along = padded.down, padded.along
        # as many as there is room for behind the last plane
        behind = min(self.reach, self.plan.rows * along.step) * padded.width
        self._single()
        for plane, (phase, further) in enumerate(self.phases.items()):
            with out.block(f"for (i64 line = 0; line < line_count + {further}; ++line)"):
                out.line(f"const i64 pixel_down = (first_line + line) * {down.step} + {phase};")
                self._axes_at(down, "pixel_down")
                out.line(f"bf16* const to = copy + {plane} * plane_size + line * line_size;")
                out.line("i64 pixel = 0, pixel_end = line_pixels;")
                if padded.mask:
                    for at, move in (("pixel", "++pixel"), ("pixel_end - 1", "--pixel_end")):
                        with out.block(f"for (; pixel < pixel_end; {move})"):
                            self._axes_at(along, at)
                            out.line(f"if ({self._there()}) break;")
                with out.block():
                    self._axes_at(along, "pixel")
                    at = index_text(padded.load.index, {padded.run: "0"})
                    name = f"matrix_pixels<{padded.channels}, {padded.width}>"
                    pixels = f"{padded.pitch}, pixel, pixel_end, line_size / {padded.width}"
                    out.line(f"{name}(to, {padded.load.buffer} + ({at}), {pixels});")
            # rows that are computed for nothing read pixels behind the last line: what an earlier kernel left
            # there may be no number, for which a whole tile would be added up again
            if behind:
                line = f"(line_count + {further}) * line_size"
                out.line(f"matrix_zeros(copy + {plane} * plane_size + {line}, {behind});")

    def _axes_at(self, slope: Slope, pixel: str) -> None:
        """Declare a result and a tap that read a pixel."""
        for name, factor in ((slope.row, slope.row_of), (slope.tap, slope.tap_of)):
            if name:
                self.out.line(f"const i64 {name} = {factor} * ({pixel});")

    def _single(self) -> None:
        """Declare the axes of one point that pixels do not depend on."""
        slopes = (self.padded.down, self.padded.along)
        known = {*self.padded.outer, self.padded.run}.union(*((s.row, s.tap) for s in slopes))
        for name in (*self.matmul.a.axes, *self.matmul.depth):
            if name not in known:
                self.out.line(f"const i64 {name} = 0;")

    def _there(self) -> str:
        """Text of whether an element is there."""
        frame = self.a.frame(None)
        for stmt in self.padded.conditions:
            frame.emit(stmt)
        return frame.text(self.padded.mask, False)

    # Sums.

    def _tile(self) -> None:
        out, plan, padded, wide = self.out, self.plan, self.padded, self.wide
        out.line(f"const i64 row_from = (tile - first_tile) * {plan.rows};")
        out.line(f"const i64 rows_here = index_min({plan.rows}, row_count - row_from);")
        pitch = padded.along.step * padded.width
        out.line(f"const bf16* const left_at = copy + (row_from - first_line * line_rows) * {pitch};")
        if padded.own_weight:
            columns = f"weight + block * {(padded.depth * wide + 31) // 32 * 32}"
        else:
            columns, _ = self.b.columns_at()
            out.line("const i64 depth_from = 0;")
        out.line(f"const bf16* const right_at = {columns};")
        out.line(f"{self.matmul.dtype}* const sum = sums;")
        self._ahead()
        rest = f"(left_at, {pitch}, chunks_at, {padded.chunk}, right_at, next, lines, sum);"
        name = f"{plan.vectors}, {padded.steps}, {self.chunks}>"
        if plan.rows > 16:
            out.line(f"if (rows_here > 16) matrix_window<2, {name}{rest}")
            out.line(f"else matrix_window<1, {name}{rest}")
        else:
            out.line(f"matrix_window<1, {name}{rest}")
        self._without_border()
        self._finish()

    def _ahead(self) -> None:
        """Declare which part of the weight a tile asks for: the first tile of the first block what it is
        about to read, all others a share of the next block.
        """
        out, padded, wide = self.out, self.padded, self.wide
        if padded.own_weight:
            out.line("const bf16* const next = right_at;")
            out.line("const i64 lines = 0;")
            return
        each, steps = (wide * padded.steps + 31) // 32, padded.depth // padded.steps
        out.line("const i64 others = tile_h - tile_g - 1, other = tile - tile_g - 1;")
        out.line("const bool here = other < 0 && (others == 0 || block == block_from);")
        out.line(f"const i64 share = others ? ({each - 1} + others) / others : 0;")
        out.line("const bool more = other >= 0 && block + 1 < block_to;")
        out.line(f"const i64 lines = tile_g != tile_from ? 0 : here ? {each} : more ? share : 0;")
        following = f"{padded.depth * wide} + other * share * {32 * steps}"
        out.line(f"const bf16* const next = right_at + (here ? {TILES_AHEAD} : {following});")

    def _without_border(self) -> None:
        """Add up again what infinite weights have made no number, without what is beyond the border."""
        out, padded, plan = self.out, self.padded, self.plan
        if not padded.mask:
            return
        with out.block(f"if (matrix_is_odd<{plan.vectors}>(sum, rows_here))"), self._rows():
            out.line(f"{self.matmul.dtype}* const sum_row = sum + row * {self.wide};")
            out.line(f"for (i64 j = 0; j < {self.wide}; ++j) sum_row[j] = 0;")
            for slope in (padded.down, padded.along):
                if slope.tap:
                    out.line(f"for (i64 {slope.tap} = 0; {slope.tap} < {slope.taps}; ++{slope.tap})")
            with out.block():
                out.line(f"if (!({self._there()})) continue;")
                step = self._step_of(padded.down.tap or "0", padded.along.tap or "0", "0")
                at = index_text(padded.load.index, {padded.run: "0"})
                out.line(
                    f"matrix_line<{plan.vectors}>({padded.load.buffer} + ({at}), {padded.channels}, "
                    f"right_at + ({step}) * {self.wide}, sum_row);"
                )

    def _finish(self) -> None:
        with self._rows():
            self._row()

    @contextmanager
    def _rows(self) -> Iterator[None]:
        """A loop over the rows of a tile that are results, with their position on all axes."""
        out, down, along = self.out, self.padded.down, self.padded.along
        with out.block():
            out.line("i64 result_down = row_from / line_rows, result_along = row_from % line_rows - 1;")
            with out.block("for (i64 row = 0; row < rows_here; ++row)"):
                out.line("if (++result_along == line_rows) { result_along = 0; ++result_down; }")
                out.line("if (result_along >= along_count) continue;")
                for slope, text in ((down, "result_down"), (along, "result_along")):
                    if slope.row:
                        out.line(f"const i64 {slope.row} = {text};")
                yield
