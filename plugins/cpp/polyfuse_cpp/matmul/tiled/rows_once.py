"""Matmuls whose columns are rows of matrix registers: threads pack the rows of operand A together, each a
part of them, and multiply behind that.
"""

from __future__ import annotations

from typing import Final

from polyfuse.plugin import Source
from polyfuse.symbolic import product
from polyfuse_cpp.loops.entry import arguments, entry, function, in_parts, in_team
from polyfuse_cpp.matmul.kernel import MatmulText
from polyfuse_cpp.matmul.operand_b import layout_cost
from polyfuse_cpp.matmul.paths import TILE
from polyfuse_cpp.matmul.touched import common_pitch
from polyfuse_cpp.memory.address import index_text

_CHUNK: Final = 512
"""Steps of the depth of one tile that a thread packs at once."""


class RowsOnceText(MatmulText):
    """Without batches, and with all of the depth: an item is a tile of rows and a block of columns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.a.shared = "shared_rows"

    def _shares(self) -> str:
        return f"const bf16* {self.a.shared}, i64 first_item, i64 end_item, matmul_parts parts"

    def _pack(self) -> None:
        """The function that packs some chunks of the rows."""
        out, side = self.out, self.a.operand
        assert side.index is not None
        shares = "bf16* rows, i64 first_chunk, i64 end_chunk"
        with function(self.matmul.kernel, f"{Source.SYMBOL}_rows", shares, out):
            self._extents()
            out.line(f"const i64 chunk_count = (depth_count + {_CHUNK - 1}) / {_CHUNK};")
            with out.block("for (i64 chunk = first_chunk; chunk < end_chunk; ++chunk)"):
                out.line(
                    f"const i64 tile = chunk / chunk_count, depth_from = chunk % chunk_count * {_CHUNK};"
                )
                out.line(f"const i64 depth_here = index_min({_CHUNK}, depth_count - depth_from);")
                apart = common_pitch(side.index, side.axes, self.matmul)
                at = self.a.row_at(f"tile * {self.plan.rows}")
                rows = f"row_count - tile * {self.plan.rows}"
                to = self.a.across_at("tile").replace(self.a.shared, "rows")
                out.line(f"pair_across<{self.plan.rows // TILE}>({to}, {at}, {apart}, depth_here, {rows});")

    def _entry(self) -> None:
        self._pack()
        out, kernel, plan = self.out, self.matmul.kernel, self.plan
        passed = arguments(kernel)
        with entry(kernel, out):
            self._extents()
            points = index_text(product(self.facts.sizes[a] for a in self.facts.axes))
            out.line(f"if (({points}) <= 0) return;")
            out.line(f"const i64 work = ({points}) * index_max(depth_count, 8);")
            out.line("const int team = team_for(tile_count * block_count, work);")
            out.line(f"const i64 chunks = tile_count * ((depth_count + {_CHUNK - 1}) / {_CHUNK});")
            out.line(f"bf16* const rows = (bf16*)scratch_new(tile_count * {plan.rows} * depth_count * 2);")
            with out.block("if (team == 1)", "} else {"):
                out.line(f"{Source.SYMBOL}_rows({passed}rows, 0, chunks);")
                out.line(f"{Source.SYMBOL}_run({passed}rows, 0, 1, {{1, 1, 1, 1}});")
            pack = f"{Source.SYMBOL}_rows({passed}rows, chunks * at / of, chunks * (at + 1) / of);"
            with out.block("  "):
                in_team(out, pack)
            bytes_of = f"depth_count * {self.wide * 2}"
            each = "parts_for(team, tile_count * block_count, work) / team"
            cost = layout_cost(self.b, False)
            shared = f"matmul_share(1, tile_count, block_count, team, {cost})"
            sizes = f"tile_count, block_count, {plan.blocks}, {bytes_of}, {each}"
            out.line(f"  const matmul_parts parts = matmul_finer({shared}, {sizes});")
            out.line("  const i64 items = parts.count();")
            share = "rows, items * at / of, items * (at + 1) / of, parts"
            in_parts(out, f"{Source.SYMBOL}_run({passed}{share});", "items", "work", indent="  ")
            out.line("}")
            out.line("scratch_free(rows);")
