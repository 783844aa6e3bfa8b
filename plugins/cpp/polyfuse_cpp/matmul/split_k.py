"""Matmuls with few results and a long depth: threads divide the depth, and their sums are added up after it.

The number of slices is part of the plan and does not depend on the number of threads, so results do not
either.
"""

from __future__ import annotations

from polyfuse.plugin import Source
from polyfuse.symbolic import product
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.loops.entry import KernelText, arguments, entry, function, in_team
from polyfuse_cpp.loops.odometer import start_at
from polyfuse_cpp.matmul.groups.stored import taps_first
from polyfuse_cpp.matmul.groups.text import GroupedText
from polyfuse_cpp.matmul.kernel import MatmulText
from polyfuse_cpp.matmul.paths import MatmulPlan, OperandPath
from polyfuse_cpp.matmul.problem import Matmul
from polyfuse_cpp.matmul.tiled.padded import padded_of
from polyfuse_cpp.matmul.tiled.rows_once import RowsOnceText
from polyfuse_cpp.matmul.tiled.text import TiledWindowText
from polyfuse_cpp.matmul.window import group_of, work_of
from polyfuse_cpp.memory.address import index_text


def matmul_text(matmul: Matmul, plan: MatmulPlan, isa: Isa) -> KernelText:
    """The C++ function of a kernel that is a matmul, named `Source.SYMBOL`."""
    if plan.lines and plan.path is OperandPath.PACKED:
        matmul = taps_first(matmul) or matmul
    if plan.lines or (plan.path is OperandPath.PREPACKED and group_of(matmul, isa.lanes)):
        return GroupedText(matmul, plan, isa).text()
    if plan.path.tiles and padded_of(matmul) is not None:
        return TiledWindowText(matmul, plan, isa).text()
    if plan.path is OperandPath.TURNED and plan.slices == 1 and not _has_batches(matmul):
        return RowsOnceText(matmul, plan, isa).text()
    return (SplitKText if plan.slices > 1 else MatmulText)(matmul, plan, isa).text()


def _has_batches(matmul: Matmul) -> bool:
    return any(matmul.facts.sizes[name] != 1 for name in matmul.batch)


class SplitKText(MatmulText):
    """A matmul whose depth is cut into slices; an item is one slice of one tile."""

    def _shares(self) -> str:
        return f"{self.matmul.dtype}* parts, i64 first_item, i64 end_item"

    def _declare_item(self) -> None:
        out, slices = self.out, self.plan.slices
        out.line("const i64 unit_count = batch_count * tile_count * block_count;")
        out.line(f"const i64 slice = item % {slices}, unit = item / {slices};")
        self._unit()
        out.line("const i64 tile_from = unit / block_count % tile_count, tile_to = tile_from + 1;")
        out.line("const i64 block_from = unit % block_count, block_to = block_from + 1;")
        out.line(f"const i64 pass_from = pass_count * slice / {slices};")
        out.line(f"const i64 pass_to = pass_count * (slice + 1) / {slices};")

    def _unit(self) -> None:
        axes, sizes = self.matmul.batch, self.facts.sizes
        start_at(axes, sizes, "unit / (tile_count * block_count)", self.out, fixed=True)

    def _sums(self) -> str:
        return f"parts + (slice * unit_count + unit) * {self.tile_size}"

    def _after_tile(self) -> None:
        """Nothing yet: other slices are missing."""

    def _combine(self) -> None:
        """The function that adds up the slices of some tiles and finishes these."""
        out, kernel, plan, kind = self.out, self.matmul.kernel, self.plan, self.matmul.dtype
        shares = f"{kind}* parts, i64 first_unit, i64 end_unit"
        with function(kernel, f"{Source.SYMBOL}_join", shares, out):
            self._extents()
            out.line("const i64 unit_count = batch_count * tile_count * block_count;")
            with out.block("for (i64 unit = first_unit; unit < end_unit; ++unit)"):
                self._unit()
                out.line("const i64 tile = unit / block_count % tile_count, block = unit % block_count;")
                out.line(f"const i64 row_from = tile * {self.a.tile_rows};")
                out.line(f"const i64 rows_here = index_min({self.a.tile_rows}, row_count - row_from);")
                self.b.column_block_index()
                size = self.tile_size
                out.line(f"{kind}* const sum = parts + unit * {size};")
                out.line(f"matmul_join<{plan.slices}>(sum, unit_count * {size}, {size});")
                self._finish()

    def _entry(self) -> None:
        self._combine()
        out, kernel, plan, kind = self.out, self.matmul.kernel, self.plan, self.matmul.dtype
        passed = arguments(kernel) + "parts, "
        with entry(kernel, out):
            self._extents()
            points = index_text(product(self.facts.sizes[a] for a in self.facts.axes))
            out.line(f"if (({points}) <= 0) return;")
            out.line("const i64 units = batch_count * tile_count * block_count;")
            out.line(f"const i64 items = units * {plan.slices}, room = items * {self.tile_size};")
            out.line(f"{kind}* const parts = ({kind}*)scratch_new(room * {kind.itemsize});")
            # a slice may have nothing to add up
            out.line(f"__builtin_memset(parts, 0, room * {kind.itemsize});")
            out.line(f"const int team = team_for(items, {work_of(self.matmul, points)});")
            with out.block("if (team == 1)", "} else {"):
                out.line(f"{Source.SYMBOL}_run({passed}0, items);")
                out.line(f"{Source.SYMBOL}_join({passed}0, units);")
            in_team(
                out,
                f"{Source.SYMBOL}_run({passed}items * at / of, items * (at + 1) / of);",
                f"{Source.SYMBOL}_join({passed}units * at / of, units * (at + 1) / of);",
                indent="  ",
            )
            out.line("}")
            out.line("scratch_free(parts);")
