"""Convolutions of groups of channels as C++ text.

A tile of rows is a part of a line of the image (`lines`), or it has a table of addresses: for each tap and
row, where its channels are, or zeros where they are beyond the border. Groups lie a distance further each, so
that nothing is packed, and a table serves all of them.

    for every part of the results that a thread has
      for some tiles of rows
        find the addresses of their rows, where they need a table
        for every few blocks of columns, for every one of the tiles: add up, and finish

Where the weight is read as it is stored (`stored`), blocks are outside of tiles, and each is laid out once:

      for every block of columns: lay it out; for every tile: add up, and finish
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.kit import stride
from polyfuse.plugin import Source
from polyfuse.symbolic import product
from polyfuse_cpp.loops.entry import function
from polyfuse_cpp.loops.odometer import advance, start_at
from polyfuse_cpp.matmul.groups.lines import Bounds, GroupLines, group_lines
from polyfuse_cpp.matmul.kernel import MatmulText, declare_part
from polyfuse_cpp.matmul.tables import column_tables
from polyfuse_cpp.matmul.window import Window, group_of, lanes_of
from polyfuse_cpp.matmul.window_text import WindowText
from polyfuse_cpp.memory.address import index_text

_TILES = 4
"""Tiles whose addresses are found at once, so that weights that were read serve all of them."""


_ALL = "group_of_all"
"""The name of the axis of groups where there is one group."""


@dataclass
class GroupedText(MatmulText):
    """A convolution of groups, or of all channels along lines, with packed weights or as they are stored."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wide = self.plan.vectors * lanes_of(self.matmul, self.lanes)
        self.tile_size = self.plan.rows * self.wide
        group = group_of(self.matmul, self.isa.lanes)
        self.tables = column_tables(self.matmul, self.isa, group)
        # all channels are one group, that no index has
        self.group = group or _ALL
        self.shared_axes = tuple(name for name in self.matmul.batch if name != self.group)
        self.block_axes = (*filter(None, (group,)), *self.matmul.b.axes[:-1])
        found = self.a.window
        assert found is not None
        self.border: WindowText = found
        self.window: Window = found.window
        sizes = self.facts.sizes
        taps = product(sizes[name] for name in self.window.taps)
        length, apart = sizes[self.window.run], stride(self.window.load.index, self.group)
        assert isinstance(taps, int) and isinstance(length, int) and isinstance(apart, int)
        self.taps, self.length, self.apart = taps, length, apart
        self.tiles = group_lines(self.matmul, self.plan.rows, self.plan.vectors)
        self.stored = self.plan.path.packed
        if self.stored:
            self.b.layout = "across"
        # columns of the groups are side by side there, too
        width = sizes[self.matmul.b.axes[-1]] if group else 0
        self.touched = tuple(t for t in self.touched if stride(t.index, self.group) == width)

    @property
    def _tile_words(self) -> int:
        return self.taps * self.plan.rows

    @property
    def _block_size(self) -> int:
        """Elements of a block of columns."""
        return self.length * self.taps * self.wide

    def _thread(self) -> None:
        out, plan, kind = self.out, self.plan, self.matmul.dtype
        with function(self.matmul.kernel, f"{Source.SYMBOL}_run", self._shares(), out):
            self._extents()
            count = "1" if self.group == _ALL else self._size((self.group,))
            out.line(f"const i64 group_count = {count};")
            # whole vectors of it are filled
            table = f"(across_count * {self.wide} + {self.lanes - 1}) / {self.lanes} * {self.lanes}"
            out.line(f"const i64 table_length = {table};")
            zeros = f"((group_count - 1) * {self.apart} + {self.length + self.lanes})"
            if self.tiles is not None:
                zeros = str(self.lanes)  # what the last row of sums is read with
            sums = plan.blocks * self.tile_size
            tables = f"{len(self._table_names())} * group_count * table_length"
            block = f" + {self._block_size}" if self.stored else ""
            room = f"({zeros} + {sums} + {tables}{block}) * {kind.itemsize}"
            out.line(f"{kind}* const sums = ({kind}*)matmul_scratch({room});")
            out.line(f"{kind}* const zeros = sums + {sums};")
            out.line(f"for (i64 k = 0; k < {zeros}; ++k) zeros[k] = {kind}(0);")
            self._fill_tables(f"zeros + {zeros}")
            if self.stored:
                out.line(f"{kind}* const laid_out = zeros + {zeros} + {tables};")
            with out.block("for (i64 item = first_item; item < end_item; ++item)"):
                self._item()

    # Tables of all groups.

    def _fill_tables(self, room: str) -> None:
        out = self.out
        for position, name in enumerate(self._table_names()):
            start = f"{room} + {position} * group_count * table_length"
            out.line(f"{self.matmul.dtype}* const {name}_of_groups = {start};")
        if self.tables is None:
            return
        with out.block(f"for (i64 {self.group} = 0; {self.group} < group_count; ++{self.group})"):
            self._tables_here()
            self._fill_columns()

    def _tables_here(self) -> None:
        """Declare the tables of a group, and the batch axes that have one point."""
        for name in self.shared_axes:
            self.out.line(f"const i64 {name} = 0;")
        for name in self._table_names():
            start = f"{name}_of_groups + {self.group} * table_length"
            self.out.line(f"{self.matmul.dtype}* const table_{name} = {start};")

    # Loops.

    def _item(self) -> None:
        out, plan, kind = self.out, self.plan, self.matmul.dtype
        declare_part(out)
        if self.stored:
            self._stored_blocks()
            return
        with out.block(f"for (i64 tile_a = tile_from; tile_a < tile_to; tile_a += {_TILES})"):
            out.line(f"const i64 tile_e = index_min(tile_to, tile_a + {_TILES});")
            if self.tiles is None:
                out.line(f"const {kind}* rows_at[{_TILES * self._tile_words}];")
                out.line(f"bool borders[{_TILES}] = {{}};")
                with out.block("for (i64 tile = tile_a; tile < tile_e; ++tile)"):
                    self._tile_rows()
                    self._addresses()
            with out.block(f"for (i64 block_a = block_from; block_a < block_to; block_a += {plan.blocks})"):
                out.line(f"const i64 blocks_here = index_min({plan.blocks}, block_to - block_a);")
                out.line(f"i64 offsets[{plan.blocks}];")
                each = f"offsets[k] = (block_a + k) / across_count * {self.apart};"
                out.line(f"for (i64 k = 0; k < blocks_here; ++k) {each}")
                with out.block("for (i64 tile = tile_a; tile < tile_e; ++tile)"):
                    self._tile_rows()
                    self._blocks()

    def _stored_blocks(self) -> None:
        """Lay out one block after the other, and multiply all tiles with it."""
        out, matmul = self.out, self.matmul
        with out.block("for (i64 block_a = block_from; block_a < block_to; ++block_a)"):
            out.line("const i64 blocks_here = 1, offsets[1] = {0};")
            out.line(f"const {matmul.dtype}* const stored_at = {self._stored_at()};")
            name = f"matmul_taps_across<{self.taps}, {self.plan.vectors}>"
            out.line(f"{name}(laid_out, stored_at, {self.taps * self.length}, {self.length});")
            with out.block("for (i64 tile = tile_from; tile < tile_to; ++tile)"):
                self._tile_rows()
                self._blocks()

    def _stored_at(self) -> str:
        """Where the first column of a block is stored."""
        right = self.matmul.b
        assert right.index is not None
        names = dict.fromkeys((*self.matmul.depth, *self.matmul.batch, *right.axes[:-1]), "0")
        names[right.axes[-1]] = f"(block_a * {self.wide})"
        return f"{right.buffer} + {index_text(right.index, names)}"

    def _tile_rows(self) -> None:
        self.out.line(f"const i64 row_from = tile * {self.plan.rows};")
        self.out.line(f"const i64 rows_here = index_min({self.plan.rows}, row_count - row_from);")

    def _addresses(self) -> None:
        """Find where the channels of each row and tap are."""
        out, window, sizes = self.out, self.window, self.facts.sizes
        with out.block(f"for (i64 row = 0; row < {self.plan.rows}; ++row)"):
            start_at(self.matmul.a.axes, sizes, "row_from + index_min(row, rows_here - 1)", out)
            start_at(window.taps, sizes, "0", out)
            for name in self.shared_axes:
                out.line(f"const i64 {name} = 0;")
            with out.block(f"for (i64 tap = 0; tap < {self.taps}; ++tap)"):
                entry = f"rows_at[(tile - tile_a) * {self._tile_words} + tap * {self.plan.rows} + row]"
                first = {window.run: "0", self.group: "0"}
                address = f"{window.load.buffer} + {index_text(window.load.index, first)}"
                if window.mask:
                    out.line(f"const bool there = {self.border.there()};")
                    out.line("borders[tile - tile_a] |= !there;")
                    out.line(f"{entry} = there ? {address} : zeros;")
                else:
                    out.line(f"{entry} = {address};")
                advance(window.taps, sizes, out)

    def _blocks(self) -> None:
        """Add up and finish the blocks of a tile."""
        out, plan = self.out, self.plan
        for name in self.shared_axes:
            out.line(f"const i64 {name} = 0;")
        wide = self.wide
        size = self._block_size
        where = "laid_out" if self.stored else f"{self.matmul.b.buffer} + block_a * {size}"
        out.line(f"const {self.matmul.dtype}* const columns_at = {where};")
        self._fetch_touched(f"block_a * {wide}", plan.blocks * wide)
        if self.tiles is not None:
            with out.block():
                self._add_up_line(self.tiles)
        else:
            self._add_up_table(size)
        with out.block("for (i64 part = 0; part < blocks_here; ++part)"):
            out.line(f"{self.matmul.dtype}* const sum = sums + part * {self.tile_size};")
            out.line(f"const i64 {self.group} = (block_a + part) / across_count;")
            out.line(f"const i64 column_from = (block_a + part) % across_count * {wide};")
            for name in self.matmul.b.axes[:-1]:
                out.line(f"const i64 {name} = 0;")
            self._tables_here()
            if self.border.has_border and self.tiles is None:
                out.line("const bool border = borders[tile - tile_a];")
                out.line("const i64 depth_from = 0, depth_here = depth_count;")
                out.line(f"static const {self.matmul.dtype} before[{self.tile_size}] = {{}};")
                self.border.after_sums(f"columns_at + part * {size}", str(wide))
            self._finish()

    def _add_up_line(self, tiles: GroupLines) -> None:
        """Add up a tile that is a part of a line."""
        out, plan, window, sizes = self.out, self.plan, self.window, self.facts.sizes
        kind, rows, bounds = self.matmul.dtype, plan.rows, tiles.inside
        start_at(self.matmul.a.axes, sizes, "row_from", out, fixed=True)
        first = dict.fromkeys((*window.taps, window.run, self.group), "0")
        start = index_text(window.load.index, first)
        out.line(f"const {kind}* at = {window.load.buffer} + {start} + offsets[0];")
        out.line(f"const {kind}* columns = columns_at;")
        lines = index_text(sizes[tiles.lines]) if tiles.lines else "1"
        out.line(f"i64 lines = {lines};")
        if tiles.there is not None:
            self._lines_there(tiles, tiles.there, lines)
        steps = f"{bounds.step}, {bounds.apart}" if bounds is not None else "0, 0"
        shape = f"{rows}, {plan.vectors}, {kind}, {lanes_of(self.matmul, self.lanes)}, {self.length}"
        begin = f"matmul_strip<{shape}, {tiles.chunk}, {tiles.taps}, {tiles.row}, {tiles.tap}, {steps}"
        cases = list(tiles.cases(rows).items())
        for position, (seen, starts) in enumerate(cases):
            test = " || ".join(f"{tiles.along} == {start}" for start in starts)
            test = f"if ({test}) " if position + 1 < len(cases) else ""
            other = "else " if position else ""
            out.line(f"{other}{test}{begin}, {seen[0]}, {seen[1]}>(at, lines, {tiles.line}, columns, sums);")

    def _lines_there(self, tiles: GroupLines, there: Bounds, lines: str) -> None:
        """Leave out lines beyond the border."""
        out, apart = self.out, there.apart
        at = f"{there.step} * {tiles.down}" if tiles.down else "0"
        limits = [
            f"index_min({lines}, index_max(0, {limit} - {at} + {apart - 1}) / {apart})"
            for limit in (there.low, there.high)
        ]
        out.line(f"const i64 line_from = {limits[0]};")
        out.line(f"lines = {limits[1]} - line_from;")
        out.line(f"at += line_from * {tiles.line};")
        out.line(f"columns += line_from * {tiles.taps * self.length * self.wide};")

    def _add_up_table(self, size: int) -> None:
        """Add up a tile that has a table of addresses."""
        out, plan = self.out, self.plan
        out.line(f"const auto rows = rows_at + (tile - tile_a) * {self._tile_words};")
        begin = f"matmul_taps<{plan.rows}, {plan.vectors}"
        kind = f"{self.matmul.dtype}, {lanes_of(self.matmul, self.lanes)}, {self.length}"
        rest = f"(rows, {self.taps}, offsets"
        whole = f"{rest}, columns_at, {size}, sums);"
        if plan.blocks == 1:
            out.line(f"{begin}, 1, {kind}, true>{whole}")
        else:
            out.line(f"if (blocks_here == {plan.blocks} && offsets[0] == offsets[{plan.blocks - 1}])")
            out.line(f"  {begin}, {plan.blocks}, {kind}, true>{whole}")
            out.line(f"else if (blocks_here == {plan.blocks}) {begin}, {plan.blocks}, {kind}, false>{whole}")
            one = f"columns_at + part * {size}, {size}, sums + part * {self.tile_size});"
            parts = "for (i64 part = 0; part < blocks_here; ++part)"
            out.line(f"else {parts} {begin}, 1, {kind}, true>{rest} + part, {one}")
