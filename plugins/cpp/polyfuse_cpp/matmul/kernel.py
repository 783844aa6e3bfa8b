"""Matmuls as C++ text: loops over blocks of results, and what is done with each of them.

    for every part of the results that a thread has            (`_parts`)
      for a block of blocks of columns, for a block of tiles of rows
        for every pass over a part of the depth
          pack the blocks                                      (`OperandBText`)
          for every tile of rows
            pack its rows                                      (`OperandAText`)
            for every block: add up the tile, and after the last pass finish it

The tiles themselves are functions of the vector layer (``prelude/matmul.h``).
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.kit import Writer, is_multiple
from polyfuse.plugin import Source
from polyfuse.symbolic import product
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.entry import KernelText, arguments, entry, function, in_parts, kernel_unit
from polyfuse_cpp.loops.odometer import advance, start_at
from polyfuse_cpp.loops.scope import Value
from polyfuse_cpp.matmul.narrow.nibble_products import NibbleProducts
from polyfuse_cpp.matmul.operand import BorderText
from polyfuse_cpp.matmul.operand_a import OperandAText
from polyfuse_cpp.matmul.operand_b import OperandBText, later_block, layout_cost, steps_ahead, stored_later
from polyfuse_cpp.matmul.paths import TILE, MatmulPlan, OperandPath
from polyfuse_cpp.matmul.plans import columns_beside, most_varying
from polyfuse_cpp.matmul.problem import Matmul, as_stored, tile_steps
from polyfuse_cpp.matmul.tables import FACTOR, SUMMAND, column_tables, emit_affine, table_of
from polyfuse_cpp.matmul.tiled.turned import STEPS
from polyfuse_cpp.matmul.touched import touched_by
from polyfuse_cpp.matmul.window import work_of
from polyfuse_cpp.memory.address import index_text

_FETCHING = (
    OperandPath.PACKED,
    OperandPath.PREPACKED,
    OperandPath.DIRECT,
    OperandPath.TILES,
    OperandPath.PREPACKED_TILES,
    OperandPath.TURNED,
)
"""Ways in which tiles of some rows are added up for long enough to fetch what finishes them."""

TILES_AHEAD = 8 << 10
"""Elements ahead for which matrix registers ask operand B: they are quick to multiply."""

_TILES = 64
"""Tiles of rows whose sums wait in memory where the depth is cut."""


@dataclass
class MatmulText:
    """The C++ function of a kernel that is a matmul, named `Source.SYMBOL`."""

    matmul: Matmul
    plan: MatmulPlan
    isa: Isa

    def __post_init__(self) -> None:
        if self.plan.path is OperandPath.DOTS and self.matmul.b.index is None:
            self.matmul = as_stored(self.matmul) or self.matmul
        self.out = Writer("  ")
        self.features = {"kernel", "omp", "matmul"}
        self.facts = self.matmul.facts
        self.lanes = self.isa.lanes
        self.wide = self.plan.vectors * self.lanes  # columns of a block
        self.tile_size = self.plan.rows * self.wide  # sums of a tile
        self.tables = column_tables(self.matmul, self.isa) if self.plan.slices == 1 else None
        fetches = self.plan.slices == 1 and self.plan.path in _FETCHING
        self.touched = touched_by(self.matmul) if fetches else ()
        # whose points threads share one by one, and of which each point has blocks of columns
        self.shared_axes, self.block_axes = self.matmul.batch, self.matmul.b.axes[:-1]
        self.a = OperandAText(self.matmul, self.plan, self.lanes, self.out, self.features)
        self.b = OperandBText(self.matmul, self.plan, self.lanes, self.out, self.features)
        if self.plan.path.paired or self.a.across:
            self.features.add("pairs")
        self.beyond = _beyond(self)
        self.products = NibbleProducts.of(self.a, self.b, self.isa)
        self.features |= set() if self.products is None else {"nibbles"}

    def text(self) -> KernelText:
        """Both functions: the part of one thread, and the one that callers see."""
        self._thread()
        self._entry()
        return kernel_unit(self.matmul.kernel, self.out, self.features)

    # Extents as text.

    def _size(self, axes: tuple[str, ...]) -> str:
        return index_text(product(self.facts.sizes[a] for a in axes))

    def _extents(self) -> None:
        """Declare the extents in elements, tiles and blocks."""
        plan, out, right = self.plan, self.out, self.matmul.b
        out.line(f"const i64 row_count = {self._size(self.matmul.a.axes)};")
        out.line(f"const i64 column_count = {index_text(self.facts.sizes[right.axes[-1]])};")
        out.line(f"const i64 depth_count = {self._size(self.matmul.depth)};")
        if most_varying(self.matmul, plan.path):
            fewest = f"index_max(1, (row_count + {plan.rows - 1}) / {plan.rows})"
            out.line(f"const i64 fewest = {fewest};")
            out.line("const i64 tile_rows = index_max(1, (row_count + fewest - 1) / fewest);")
            out.line("const i64 tile_count = (row_count + tile_rows - 1) / tile_rows;")
        else:
            out.line(f"const i64 tile_count = (row_count + {plan.rows - 1}) / {plan.rows};")
        wide = self.wide
        out.line(f"const i64 across_count = (column_count + {wide - 1}) / {wide};")
        outer = self._size(self.block_axes)
        out.line(f"const i64 block_count = {'' if outer == '1' else f'({outer}) * '}across_count;")
        out.line(f"const i64 batch_count = {self._size(self.shared_axes)};")

    # The function that callers see.

    def _entry(self) -> None:
        out, kernel, facts = self.out, self.matmul.kernel, self.facts
        passed = arguments(kernel)
        with entry(kernel, out):
            self._extents()
            points = index_text(product(facts.sizes[a] for a in facts.axes))
            out.line(f"if (({points}) <= 0) return;")
            out.line(f"const i64 work = {work_of(self.matmul, points)};")
            out.line("const int team = team_for(batch_count * tile_count * block_count, work);")
            with out.block("if (team == 1)"):
                out.line(f"{Source.SYMBOL}_run({passed}0, batch_count, {{1, 1, 1, 1}});")
                out.line("return;")
            self._divide()
            out.line("const i64 items = batch_count * parts.count();")
            share = "items * at / of, items * (at + 1) / of, parts"
            in_parts(out, f"{Source.SYMBOL}_run({passed}{share});", "items", "work")

    def _divide(self) -> None:
        """Declare the parts that threads share out among each other."""
        lays_out = self.plan.path.packed or self.plan.path in (OperandPath.CONVERTED, OperandPath.TURNED)
        counts = "batch_count, tile_count, block_count"
        shared = f"matmul_share({counts}, team, {layout_cost(self.b, self.a.at_once)})"
        if not lays_out:  # where blocks or rows are laid out, each part lays out its own
            block_bytes = f"depth_count * {self.wide * self.matmul.dtype.itemsize}"
            each = "parts_for(team, batch_count * tile_count * block_count, work) / team"
            sizes = f"tile_count, block_count, {self.plan.blocks}, {block_bytes}, {each}"
            shared = f"matmul_finer({shared}, {sizes})"
        self.out.line(f"const matmul_parts parts = {shared};")

    # The part of one thread.

    def _thread(self) -> None:
        out, kernel, plan = self.out, self.matmul.kernel, self.plan
        kind = self.matmul.dtype
        with function(kernel, f"{Source.SYMBOL}_run", self._shares(), out):
            self._extents()
            most = f"matmul_pass(depth_count, {plan.depth})" if self.a.lines == 0 else str(plan.depth)
            out.line(f"const i64 pass_depth = depth_count <= {plan.depth} ? depth_count : {most};")
            out.line(
                "const i64 pass_count = depth_count <= pass_depth ? 1 : "
                "(depth_count + pass_depth - 1) / pass_depth;"
            )
            tile = self.tile_size
            room_b, room_a = self.b.room(), self.a.room()
            sums = f"(pass_count == 1 ? 1 : index_min(tile_count, {_TILES}) * {plan.blocks}) * {tile}"
            tables = f"{len(self.tables.names)} * table_length" if self.tables else "0"
            laid = f" + {self.products.room}" if self.products is not None else ""
            if self.tables:
                out.line(f"const i64 table_length = across_count * {plan.vectors * self.lanes};")
            room = f"(({room_b}) + ({room_a}) + {sums} + {tables}{laid}) * {kind.itemsize}"
            out.line(f"{kind}* const packed_b = ({kind}*)matmul_scratch({room});")
            out.line(f"{kind}* const packed_a = packed_b + {room_b};")
            out.line(f"{kind}* const sums = packed_a + {room_a};")
            if self.products is not None:
                out.line(f"{kind}* const laid = sums + {sums} + {tables};")
            self._fill_tables(f"sums + {sums}")
            if self.a.across:
                out.line("matrix_begin<32>();")
            elif plan.path.tiles:
                out.line(f"matrix_begin<{tile_steps(self.matmul)}>();")
            with out.block("for (i64 item = first_item; item < end_item; ++item)"):
                self._item()
            if plan.path.tiles or self.a.across:
                out.line("matrix_end();")

    def _fill_tables(self, room: str) -> None:
        """Compute what is the same in all rows."""
        for position, name in enumerate(self._table_names()):
            at = f"{room} + {position} * table_length"
            self.out.line(f"{self.matmul.dtype}* const {table_of(name)} = {at};")
        self._fill_columns()

    def _table_names(self) -> tuple[str, ...]:
        return self.tables.names if self.tables else ()

    def _fill_columns(self) -> None:
        out, lane = self.out, self.matmul.b.axes[-1]
        if self.tables is None:
            return
        affine = self.tables.affine
        tail = None if is_multiple(self.facts.sizes[lane], self.lanes) else "n"
        with out.block(f"for (i64 {lane} = 0; {lane} < column_count; {lane} += {self.lanes})"):
            if tail:
                out.line(f"const i64 n = index_min({self.lanes}, column_count - {lane});")
            frame = self.a.frame(lane, 1, tail)
            for stmt in self.tables.made_by:
                frame.emit(stmt)
            for name in self.tables.values:
                out.line(f"store({table_of(name)} + {lane}, {frame.text(name, True)});")
            if affine is not None:
                out.line(f"auto factor = splat<Vec>({self.matmul.dtype}(1));")
                out.line(f"auto summand = splat<Vec>({self.matmul.dtype}(0));")
                for op, name in affine.steps:
                    changed = ("factor", "summand") if op == "mul" else ("summand",)
                    for part in changed:
                        out.line(f"{part} = {op}({part}, {frame.text(name, True)});")
                out.line(f"store({table_of(FACTOR)} + {lane}, factor);")
                out.line(f"store({table_of(SUMMAND)} + {lane}, summand);")

    def _item(self) -> None:
        out, plan = self.out, self.plan
        self._declare_item()
        self.a.before_item()
        if self.products is not None:
            self.products.before_item()
        with out.block(f"for (i64 block_a = block_from; block_a < block_to; block_a += {plan.blocks})"):
            out.line(f"const i64 block_e = index_min(block_to, block_a + {plan.blocks});")
            # blocks are packed anew for the tiles whose sums wait; where none do, once for all
            out.line(f"const i64 tiles_here = pass_count == 1 ? tile_to - tile_from : {_TILES};")
            with out.block("for (i64 tile_a = tile_from; tile_a < tile_to; tile_a += tiles_here)"):
                out.line("const i64 tile_e = index_min(tile_to, tile_a + tiles_here);")
                with out.block("for (i64 pass = pass_from; pass < pass_to; ++pass)"):
                    self._pass()

    # What one item is, and where its sums go.

    def _shares(self) -> str:
        """Parameters that say what one thread does."""
        return "i64 first_item, i64 end_item, matmul_parts parts"

    def _declare_item(self) -> None:
        """Declare the position of an item: some tiles of rows and blocks of columns, over the whole depth."""
        out = self.out
        start_at(self.matmul.batch, self.facts.sizes, "item / parts.count()", out, fixed=True)
        declare_part(out)
        out.line("const i64 pass_from = 0, pass_to = pass_count;")

    def _sums(self) -> str:
        """Where the sums of the tile at hand are: they wait for the next pass if there is one."""
        waiting = f"((tile - tile_a) * {self.plan.blocks} + block - block_a) * {self.tile_size}"
        return f"sums + (pass_count == 1 ? 0 : {waiting})"

    def _after_tile(self) -> None:
        """Finish a tile that is added up."""
        self.out.line("if (pass + 1 < pass_to) continue;")
        self._finish()

    def _pass(self) -> None:
        out = self.out
        out.line("const i64 depth_from = pass * pass_depth;")
        out.line("const i64 depth_here = index_min(pass_depth, depth_count - depth_from);")
        self.b.before_pass()
        with out.block("for (i64 tile = tile_a; tile < tile_e; ++tile)"):
            out.line(f"const i64 row_from = tile * {self.a.tile_rows};")
            out.line(f"const i64 rows_here = index_min({self.a.tile_rows}, row_count - row_from);")
            self.a.before_tile()
            with out.block("for (i64 block = block_a; block < block_e; ++block)"):
                self._tile()

    def _fetch(self) -> None:
        """Ask for what finishing the tile at hand touches."""
        if not self.touched:
            return
        with self.out.block("if (pass + 1 == pass_to)"):
            self._fetch_touched("column_from", self.plan.vectors * self.lanes)

    def _fetch_touched(self, column: str, count: int) -> None:
        """Ask for some columns of what finishing the tile at hand touches."""
        axes = (*self.matmul.a.axes, *self.matmul.b.axes, *self.block_axes)
        for touched in self.touched:
            first = f"{touched.buffer} + {index_text(touched.index, dict.fromkeys(axes, '0'))}"
            address = f"{first} + row_from * {touched.pitch} + {column}"
            self.out.line(f"matmul_fetch<{self.plan.rows}, {touched.pitch}, {count}>({address});")

    def _tile(self) -> None:
        out, plan = self.out, self.plan
        self.b.column_block_index()
        self._fetch()
        out.line(f"{self.matmul.dtype}* const sum = {self._sums()};")
        if self.beyond is not None:
            self.beyond.before_sums()
        if plan.path.along_depth:
            self._dots()
        elif plan.path.paired:
            _add_up_pairs(self)
        elif plan.path is OperandPath.TURNED:
            _add_up_turned(self)
        elif narrow := 0 if self.a.window is not None else self.b.narrow:
            with out.block(f"if (column_from + {self.wide} > column_count)"):
                self._added_up(narrow)
            with out.block("else"):
                self._added_up(plan.vectors)
        else:
            self._added_up(plan.vectors)
        if self.beyond is not None:
            self.beyond.after_sums()
        self._after_tile()

    def _added_up(self, vectors: int) -> None:
        """Add up a tile whose rows are packed or read in place, of so many vectors."""
        plan, out = self.plan, self.out
        columns, following = self.b.columns_at()
        row, step = self.a.layout_steps()
        later = "" if self.is_one_tile() else later_block(self.b, columns)
        ahead = 0 if later else steps_ahead(plan, self.matmul)
        begin = f"matmul_tile<{plan.rows}, {vectors}, {plan.vectors}, {self.matmul.dtype}"
        end = f"{columns}, {following}, depth_here, sum, pass == pass_from{later});"
        fixed = following if following.isdigit() else "0"
        name = f"{begin}, {step}, {ahead}, {fixed}>"
        packed = f"{name}({self.a.rows_at()}, {row}, 0, {end}"
        if self.a.window is not None:
            self.a.window.before_sums()
            rows = f"{self.a.rows_at()}, {row}"
            self.a.window.sums(packed, rows, f"{ahead}, {fixed}", columns, following)
            self.a.window.after_sums(columns, following)
        elif not self.a.pitch:
            out.line(packed)
        else:
            if not self.a.whole:
                out.line(f"if (rows_here < {plan.rows}) {packed}")
                out.line("else")
            fetches = plan.path in _FETCHING and not self.is_one_tile()
            fetch = self.a.fetched() if fetches else "0"
            out.line(f"{name}(left_at, {self.a.pitch}, {fetch}, {end}")
        if self.beyond is not None:
            self.beyond.look(vectors)

    def _dots(self) -> None:
        """Add up a tile along the depth, or look up its numbers where rows allow that."""
        if self.products is None:
            _tiles_along(self)
            return
        with self.out.block("if (fit)"):
            self.products.add_up()
        with self.out.block("else"):
            _tiles_along(self)

    def is_one_tile(self) -> bool:
        """Whether one tile holds all rows."""
        rows = product(self.facts.sizes[a] for a in self.matmul.a.axes)
        return isinstance(rows, int) and rows <= self.plan.rows

    # What is done with the sums of a tile.

    def _finish(self) -> None:
        out, axes, sizes = self.out, self.matmul.a.axes, self.facts.sizes
        start_at(axes, sizes, "row_from", out)
        with out.block("for (i64 row = 0; row < rows_here; ++row)"):
            self._row()
            advance(axes, sizes, out)

    def _row(self) -> None:
        out, lane = self.out, self.matmul.b.axes[-1]
        wide, name, size = self.wide, lane, self.facts.sizes[lane]
        out.line(f"const {self.matmul.dtype}* const sum_row = sum + row * {wide};")
        outside = self.a.frame(lane)
        invariant = outside.emit_invariants(self.matmul.epilogue, {lane})
        if self.lanes == 1:
            end = f"index_min(column_count, column_from + {wide})"
            with out.block(f"for (i64 {name} = column_from; {name} < {end}; ++{name})"):
                self._columns(
                    self.a.frame(None), outside, invariant, ["load<Sca>(sum_row + {} - column_from)"]
                )
            return
        vectors, rest = divmod(wide, self.lanes)
        whole = is_multiple(size, wide) and not rest
        test = "" if whole else f"if (column_from + {wide} <= column_count)"
        if not rest:
            with out.block(test, "}" if whole else "} else {"):
                out.line(f"const i64 {name} = column_from;")
                parts = [f"load<Vec>(sum_row + {j * self.lanes})" for j in range(vectors)]
                self._columns(self.a.frame(lane, vectors), outside, invariant, parts)
        if whole:
            return
        with out.block(f"  for (i64 {name} = column_from; {name} < column_count; {name} += {self.lanes})"):
            out.line(f"const i64 n = index_min({self.lanes}, column_count - {name});")
            parts = [f"load<Vec>(sum_row + {name} - column_from)"]
            self._columns(self.a.frame(lane, 1, "n"), outside, invariant, parts)
        if not rest:
            out.line("}")

    def _columns(self, frame: Frame, outside: Frame, invariant: frozenset[int], sums: list[str]) -> None:
        """The statements for some columns, whose sums are `sums`."""
        frame.env = dict(outside.env)
        vector = frame.lane is not None
        names = []
        for copy, text in enumerate(sums):
            names.append(f"total_{copy}")
            lane = self.matmul.b.axes[-1]
            self.out.line(f"const auto total_{copy} = {text.format(lane)};")
        frame.env[self.matmul.accumulator] = Value(self.matmul.dtype, vector, tuple(names))
        if self.tables is not None:
            frame.read_tables({name: table_of(name) for name in self.tables.values})
            invariant |= self.tables.spared
            if self.tables.affine is not None:
                emit_affine(self.tables.affine, self.matmul, frame)
        for stmt in self.matmul.epilogue:
            if id(stmt) not in invariant:
                frame.emit(stmt)


def _beyond(text: MatmulText) -> BorderText | None:
    """What is done where an operand is zero beyond a border; a window sees to that itself."""
    masked = tuple(side for side in (text.a, text.b) if side.mask)
    packed = text.plan.path is OperandPath.PACKED and text.matmul.dtype.is_float
    if not masked or not packed or text.a.window is not None:
        return None
    row, step = text.a.layout_steps()
    (columns, following), rows = text.b.columns_at(), text.a.rows_at()
    if text.a.pitch:
        rows, row, step = "left_at", str(text.a.pitch), "1"
    at = f"({rows})[row * {row} + k * {step}]", f"({columns})[k * {following} + j]"
    return BorderText(masked, text.wide, *at)


def _tiles_along(text: MatmulText) -> None:
    """Add up a tile along the depth. Where rows vary, it has exactly as many as there are."""
    plan, out = text.plan, text.out
    if text.a.across:
        _add_up_converted(text)
        return
    heights = {plan.rows: plan.columns}
    if most_varying(text.matmul, plan.path):
        heights = {n: columns_beside(text.matmul, text.isa, n) for n in range(1, plan.rows + 1)}
    wide = plan.vectors * text.lanes
    kinds = f"{text.matmul.dtype}, {text.a.element()}, {text.b.element}"
    fetches = plan.path is OperandPath.DOTS
    # the first tile of rows fetches the columns for all
    one = text.is_one_tile() or not fetches
    ahead = str(fetches).lower() if one else "tile == tile_a"
    passed = f"depth_from, depth_here, sum + j, {wide}, pass == pass_from, {ahead}"
    for rows, columns in heights.items():
        test = f"if (rows_here == {rows}) " if len(heights) > 1 else ""
        with out.block(
            f"{test}for (i64 j = 0; j < index_min({wide}, column_count - column_from); j += {columns})"
        ):
            if text.b.converts_groups:
                text.b.convert_group()
            out.line(f"matmul_dots<{rows}, {columns}, {kinds}>(rows_at, columns_at + j, {passed});")


def _add_up_pairs(text: MatmulText) -> None:
    """Add up a tile of bf16 in pairs of steps."""
    plan, out, rows = text.plan, text.out, text.a
    columns, _ = text.b.columns_at()
    # the first tile of rows brings what was packed once from memory
    ahead = f"tile == tile_a ? {TILES_AHEAD} : 0" if plan.path is OperandPath.PREPACKED_TILES else "0"
    later = "" if text.is_one_tile() else later_block(text.b, columns)
    end = f"{columns}, depth_here, sum, pass == pass_from);"
    if not plan.path.tiles:
        out.line(f"pair_tile<{plan.rows}, {plan.vectors}, {rows.row}>({rows.rows_at()}, {end}")
        return
    end = f"{columns}, {'0' if later else ahead}, depth_here, sum, pass == pass_from{later});"
    name = f"matrix_tile<{plan.rows // TILE}, {plan.vectors}, {tile_steps(text.matmul)}>"
    packed = f"{name}({rows.rows_at()}, {rows.row}, 0, {end}"
    if not rows.pitch:
        out.line(packed)
        return
    if not rows.whole:
        out.line(f"if (rows_here < {plan.rows}) {packed}")
        out.line("else")
    fetch = "0" if text.is_one_tile() or later else rows.fetched()
    out.line(f"{name}(left_at, {rows.pitch}, {fetch}, {end}")


def _add_up_converted(text: MatmulText) -> None:
    """Add up a tile whose columns are converted, as rows of a left operand."""
    out, passed = text.out, "depth_here, sum, rows_here, pass == pass_from"
    with out.block():
        if text.b.converts_groups:
            out.line("const i64 j = 0;")
            text.b.convert_group()
        out.line("const i64 apart = columns_at[1] - columns_at[0];")
        rows = text.a.across_at("tile")
        out.line(f"matrix_columns(columns_at[0] + depth_from, apart, {rows}, {passed});")


def _add_up_turned(text: MatmulText) -> None:
    """Add up a tile whose columns are read as rows of a left operand."""
    (columns, apart), plan = text.b.columns_at(), text.plan
    later = stored_later(text.b, columns, STEPS, text.is_one_tile())
    where = f"{columns}, {apart}, {text.a.across_at('tile')}"
    passes = "pass == pass_from, pass + 1 == pass_to"
    name = f"matrix_turned<{plan.rows // TILE}, {plan.vectors}>"
    text.out.line(f"{name}({where}, depth_here, sum, {passes}, {later});")


def declare_part(out: Writer) -> None:
    """Declare which tiles of rows and blocks of columns an item has."""
    out.line("const i64 part = item % parts.count();")
    for name, kind in (("tile", "down"), ("block", "over")):
        out.line(f"const i64 {name}_from = {name}_count * parts.{kind}_at(part) / parts.{kind}s();")
        out.line(f"const i64 {name}_to = {name}_count * (parts.{kind}_at(part) + 1) / parts.{kind}s();")
