"""A stage whose accesses run along two different axes: square tiles of both, transposed in registers."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.kit import is_multiple
from polyfuse.symbolic import product
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.nest import CHEAP, emit_sections
from polyfuse_cpp.loops.stage import StageText, blocks_text
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.register_transpose import transpose_tiles

_LONG = 1024
"""Extent along the lanes of a block of tiles: long, so that results are written row by row."""

_STREAMED_LONG, _STREAMED_DEEP = 256, 32
"""Extents of a block whose results bypass the caches: then it is better to read whole rows than to write
them.
"""

_LINE = 64
"""Bytes of a cache line."""


@dataclass
class TiledText(StageText):
    """A stage with a second axis along which some accesses are contiguous."""

    def items_text(self) -> str:
        """The number of blocks of tiles, as text."""
        plan, facts = self.plan, self.facts
        rest = product(facts.sizes[a] for a in plan.axes[:-2])
        long, deep = self._block()
        counts = [blocks_text(facts.sizes[plan.tile], deep), blocks_text(facts.sizes[plan.lane], long)]
        return " * ".join(f"({t})" for t in ([] if rest == 1 else [index_text(rest)]) + counts)

    def _block(self) -> tuple[int, int]:
        """Extents of a block along the lanes and along the other axis: whole cache lines of the accesses
        there.
        """
        smallest = min(self.facts.memory[a.buffer].itemsize for a in self.plan.tiled)
        deep = max(self.plan.lanes, _LINE // smallest)
        return (_STREAMED_LONG, max(deep, _STREAMED_DEEP)) if self.streaming else (_LONG, deep)

    def _items(self) -> None:
        """Every item is a block of both axes; inside it, tiles as wide as a vector are transposed."""
        plan, out, facts = self.plan, self.out, self.facts
        self.features.add("tile")
        lane, side, lanes = plan.lane, plan.tile, plan.lanes
        long, deep = self._block()
        sizes = {plan.tile: facts.sizes[plan.tile], plan.lane: facts.sizes[plan.lane]}
        out.line(f"const i64 down = {blocks_text(sizes[plan.tile], deep)};")
        out.line(f"const i64 over = {blocks_text(sizes[plan.lane], long)};")
        with out.block("for (i64 item = begin; item < end; ++item)"):
            out.line(f"const i64 {side}_a = item / over % down * {deep};")
            out.line(f"const i64 {lane}_a = item % over * {long};")
            out.line(f"const i64 {side}_e = index_min({side}_a + {deep}, {index_text(sizes[plan.tile])});")
            out.line(f"const i64 {lane}_e = index_min({lane}_a + {long}, {index_text(sizes[plan.lane])});")
            self._odometer(plan.axes[:-2], "item / over / down")
            outside = self.frame(plan.lane)
            invariant = outside.emit_invariants(facts.statements, {plan.lane, plan.tile, *facts.raxes})
            loops = [
                f"for (i64 {side}_b = {side}_a; {side}_b < {side}_e; {side}_b += {lanes})",
                f"for (i64 {lane} = {lane}_a; {lane} < {lane}_e; {lane} += {lanes})",
            ]
            outer, inner = reversed(loops) if self.streaming else loops
            with out.block(outer), out.block(inner):
                self._tile(outside, invariant)

    def _tile(self, outside: Frame, invariant: frozenset[int]) -> None:
        """One tile: a whole one, or one at an edge."""
        plan, out = self.plan, self.out
        lane, side, lanes = plan.lane, plan.tile, plan.lanes
        tests = []
        for name, first, last in ((plan.lane, lane, f"{lane}_e"), (plan.tile, f"{side}_b", f"{side}_e")):
            if not is_multiple(self.facts.sizes[name], lanes):
                tests.append(f"{last} - {first} >= {lanes}")
        if not tests:
            self._whole(outside, invariant)
            return
        with out.block(f"if ({' && '.join(tests)})", "} else {"):
            self._whole(outside, invariant)
        with out.block("  "):
            out.line(f"const i64 m = index_min({lanes}, {side}_e - {side}_b);")
            out.line(f"const i64 n = index_min({lanes}, {lane}_e - {lane});")
            self._transposed(outside, invariant, edge=True)
        out.line("}")

    def _whole(self, outside: Frame, invariant: frozenset[int]) -> None:
        """A whole tile: its rows side by side where they are cheap, so that nothing of it goes through
        memory.
        """
        cost = self.facts.cost_of(s for s in self.facts.statements if id(s) not in invariant)
        self._transposed(outside, invariant, unroll=cost <= CHEAP)

    def _transposed(
        self, outside: Frame, invariant: frozenset[int], *, unroll: bool = False, edge: bool = False
    ) -> None:
        """Transpose what is loaded, compute every row, transpose what is stored; of a tile at an edge, `n`
        lanes and `m` rows.
        """
        plan, out = self.plan, self.out
        side = plan.tile
        extent, tail = (", n, m", "n") if edge else ("", None)
        transposed = transpose_tiles(plan.tiled, outside, plan.tile, f"{side}_b", extent)
        if unroll:
            out.line(f"#pragma GCC unroll {plan.lanes}")
        with out.block(f"for (int k = 0; k < {'m' if edge else plan.lanes}; ++k)"):
            out.line(f"const i64 {side} = {side}_b + k;")
            frame = self.frame(plan.lane, 1, tail)
            frame.env, frame.tiles = dict(outside.env), transposed.tiles
            emit_sections(plan, frame, invariant)
        for line in transposed.after:
            out.line(line)
