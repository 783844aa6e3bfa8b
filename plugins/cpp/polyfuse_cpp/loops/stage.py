"""One stage of a kernel as C++ text: the function that does a range of its items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.ir.statements import Statement
from polyfuse.kit import Writer, is_multiple
from polyfuse.symbolic import IndexLike, product
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.entry import function
from polyfuse_cpp.loops.nest import emit_sections
from polyfuse_cpp.loops.odometer import advance, start_at
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.byte_rows import byte_rows
from polyfuse_cpp.memory.index_checks import limit_checks
from polyfuse_cpp.memory.interleave import interleaved_stores
from polyfuse_cpp.memory.row_groups import rows_of_group
from polyfuse_cpp.memory.streaming_stores import middles, streaming_stores
from polyfuse_cpp.memory.tables import lane_tables
from polyfuse_cpp.tiling import Plan, are_rows_apart, is_apart

_STACK_BYTES = 16384

_SIDE_BY_SIDE = 4
"""Points of a row that are written side by side where there are no lanes."""

_STRIP = 4
"""Vectors of a strip of the lane axis: whole cache lines of what is read, little of what is stored to."""


def _table(name: str) -> str:
    """The array that holds a value for each position of the lane axis."""
    return f"table_{name}"


def blocks_text(size: IndexLike, lanes: int) -> str:
    """Vectors that cover an extent."""
    if isinstance(size, int):
        return str(-(-size // lanes))
    return f"({index_text(size)} + {lanes - 1}) / {lanes}"


@dataclass
class StageText:
    """The function that does a range of a kernel's items."""

    facts: Facts
    plan: Plan
    out: Writer
    features: set[str]
    name: str

    def __post_init__(self) -> None:
        self.interleaved = interleaved_stores(self.facts, self.plan)
        self.streaming = streaming_stores(self.facts, self.plan, self.interleaved)
        self.new_pages = [] if self.plan.tile else middles(self.facts, self.streaming)
        self.checks = limit_checks(self.facts)
        self.tables = lane_tables(self.facts, self.plan)
        self.by_rows = are_rows_apart(self.facts, self.plan)
        self.together = rows_of_group(self.facts, self.plan)

    def emit(self) -> None:
        """Write the function."""
        past = ", bool past" if self.new_pages else ""
        with function(self.facts.kernel, self.name, f"i64 begin, i64 end, bool alone{past}", self.out):
            heap = self._scratch()
            self._items()
            if self.streaming:
                self.features.add("stream")
                self.out.line("stream_end();")
            for name in heap:
                self.out.line(f"scratch_free({name});")

    def items_text(self) -> str:
        """The number of work items, as text."""
        plan, facts = self.plan, self.facts
        if self.by_rows:
            return index_text(product(facts.sizes[a] for a in plan.axes[:-1]))
        if not plan.lane or plan.across:
            return index_text(product(facts.sizes[a] for a in plan.axes))
        blocks = blocks_text(facts.sizes[plan.lane], plan.lanes)
        if plan.along:
            return blocks
        rest = product(facts.sizes[a] for a in plan.axes[:-1])
        return blocks if rest == 1 else f"({index_text(rest)}) * ({blocks})"

    def share_text(self) -> str:
        """The number of items that threads must not divide, as text; empty for one."""
        if self.together == 1:
            return ""
        if not self.plan.lane or self.plan.across:
            return str(self.together)
        blocks = blocks_text(self.facts.sizes[self.plan.lane], self.plan.lanes)
        return f"{self.together} * ({blocks})"

    def _items(self) -> None:
        """Write the loops over the items from ``begin`` to ``end``."""
        if self.plan.lane and not self.plan.across:
            self._lanes_apart()
        else:
            self._points()

    def _scratch(self) -> list[str]:
        """Declare locals; on the heap where they are big or of unknown size."""
        wide = self.plan.lanes * self.plan.unroll if self.plan.lane and not self.plan.across else 1
        heap = []
        for local in self.facts.kernel.row_buffers:
            name, kind = local.name, local.dtype
            if isinstance(local.size, int) and local.size * wide * kind.itemsize <= _STACK_BYTES:
                count = max(1, -(-local.size * wide // 16) * 16 + 16)
                self.out.line(f"alignas(64) {kind} {name}[{count}];")
            else:
                size = f"(({index_text(local.size)}) * {wide} + 16) * {kind.itemsize}"
                self.out.line(f"{kind}* const {name} = ({kind}*)scratch_new({size});")
                heap.append(name)
        return heap

    def frame(self, lane: str | None, copies: int = 1, tail: str | None = None) -> Frame:
        apart = bool(self.plan.lane and not self.plan.across)
        exclusive = frozenset(
            id(a.stmt)
            for a in self.facts.all_accesses
            if a.is_store and a.mode != "set" and (self._is_threads_own() or self._never_collides(a.stmt))
        )
        return Frame(
            facts=self.facts,
            out=self.out,
            lane=lane,
            lanes=self.plan.lanes,
            copies=copies,
            tail=tail,
            exclusive=exclusive,
            local_lanes=self.plan.lanes * self.plan.unroll if apart else 1,
            repeated=self.plan.repeated,
            features=self.features,
            streaming=self.streaming,
            past="past" if self.new_pages else "true",
            interleaved=self.interleaved,
            checks=self.checks,
        )

    def _is_threads_own(self) -> bool:
        """Whether no two threads update one element."""
        return self.by_rows or self.plan.serial or self.plan.along or self.together > 1

    def _never_collides(self, stmt: Statement) -> bool:
        access = next(a for a in self.facts.all_accesses if a.stmt is stmt)
        if any(self.facts.hints[a] != 1 or self.facts.sizes[a] != 1 for a in self.facts.raxes):
            return False
        return all(is_apart(access, a, self.facts) for a in self.facts.axes)

    # Lanes along a reduction axis, or none: one point after the other.

    def _points(self) -> None:
        axes = self.plan.axes
        if axes and not self.plan.raxes and self.facts.sizes[axes[-1]] != 1:
            self._rows_of_points(axes[:-1], axes[-1])
            return
        self._odometer(axes, "begin")
        frame = self.frame(None)
        with self.out.block("for (i64 item = begin; item < end; ++item)"):
            emit_sections(self.plan, frame)
            self._advance(axes)

    def _rows_of_points(self, outer: Sequence[str], inner: str) -> None:
        """Points along the innermost axis in a loop of their own, which computes little but them."""
        out, size = self.out, index_text(self.facts.sizes[inner])
        if self.by_rows:
            self._odometer(outer, "begin")
            with out.block("for (i64 item = begin; item < end; ++item)"):
                self._row_of_points(inner, "0", size)
                self._advance(outer)
            return
        out.line(f"const i64 length = {size};")
        self._odometer(outer, "begin / length")
        out.line("i64 first = begin % length;")
        with out.block("for (i64 item = begin; item < end;)"):
            out.line("const i64 stop = index_min(length, first + end - item);")
            self._row_of_points(inner, "first", "stop")
            out.line("item += stop - first;")
            out.line("first = 0;")
            self._advance(outer)

    def _row_of_points(self, inner: str, first: str, stop: str) -> None:
        frame = self.frame(None)
        done = frame.emit_invariants(self.facts.statements, {inner})
        self.out.line(f"#pragma GCC unroll {_SIDE_BY_SIDE}")
        with self.out.block(f"for (i64 {inner} = {first}; {inner} < {stop}; ++{inner})"):
            emit_sections(self.plan, frame.child(), done)

    def _odometer(self, axes: Sequence[str], start: str) -> None:
        """Positions on `axes` at a flat position."""
        start_at(axes, self.facts.sizes, start, self.out)

    def _advance(self, axes: Sequence[str]) -> None:
        advance(axes, self.facts.sizes, self.out)

    # Lanes along a parallel axis: parts of rows.

    def _lanes_apart(self) -> None:
        plan, out = self.plan, self.out
        self._fill_tables()
        size = self.facts.sizes[plan.lane]
        outer = plan.axes[:-1]
        if plan.along:
            self._strips(outer, size)
            return
        if all(self.facts.sizes[a] == 1 for a in outer):
            for name in outer:
                out.line(f"const i64 {name} = 0;")
            out.line(
                f"const i64 from = begin * {plan.lanes}, "
                f"to = index_min(end * {plan.lanes}, {index_text(size)});"
            )
            self.lane_range()
            return
        blocks = blocks_text(size, plan.lanes)
        out.line(f"const i64 blocks = {blocks};")
        self._odometer(outer, "begin / blocks")
        out.line("i64 block = begin % blocks;")
        with out.block("for (i64 item = begin; item < end;)"):
            out.line("const i64 stop = index_min(blocks, block + end - item);")
            out.line(
                f"const i64 from = block * {plan.lanes}, "
                f"to = index_min(stop * {plan.lanes}, {index_text(size)});"
            )
            with out.block():
                self.lane_range()
            out.line("item += stop - block;")
            out.line("block = 0;")
            self._advance(outer)

    def _fill_tables(self) -> None:
        """Compute what depends on the lane axis alone, for all rows."""
        tables, out, lane = self.tables, self.out, self.plan.lane
        if tables is None:
            return
        for name in tables.values:
            out.line(f"alignas(64) {self.facts.dtypes[name]} {_table(name)}[{tables.length}];")
        with out.block(f"for (i64 {lane} = 0; {lane} < {tables.length}; {lane} += {self.plan.lanes})"):
            frame = self.frame(self.plan.lane)
            for stmt in tables.made_by:
                frame.emit(stmt)
            for name in tables.values:
                out.line(f"store({_table(name)} + {lane}, {frame.text(name, True)});")

    def _rows(self, frame: Frame, invariant: frozenset[int]) -> None:
        """What is done at one position of the lane axis."""
        if self.tables is not None:
            frame.read_tables({name: _table(name) for name in self.tables.values})
            invariant |= self.tables.spared
        name = self.plan.repeated
        if not name:
            emit_sections(self.plan, frame, invariant)
            return
        invariant |= frame.emit_invariants(self.facts.statements, {name})
        with self.out.block(f"for (i64 {name} = 0; {name} < {index_text(self.facts.sizes[name])}; ++{name})"):
            emit_sections(self.plan, frame.child(), invariant)

    def _strips(self, outer: Sequence[str], size: IndexLike) -> None:
        """All rows of a share of the lane axis; where each lane stores to a row of its own, strip by strip,
        so that what is stored to stays in the caches.
        """
        lanes, out, facts = self.plan.lanes, self.out, self.facts
        scattered = (v for a in facts.all_accesses if a.is_store for v in a.indirect)
        if not any(self.plan.lane in facts.depends[v] for v in scattered):
            out.line(f"const i64 from = begin * {lanes}, to = index_min(end * {lanes}, {index_text(size)});")
            self._outer_loops(outer)
            return
        with out.block(f"for (i64 strip = begin; strip < end; strip += {_STRIP})"):
            out.line(
                f"const i64 from = strip * {lanes}, "
                f"to = index_min(index_min(strip + {_STRIP}, end) * {lanes}, {index_text(size)});"
            )
            self._outer_loops(outer)

    def _outer_loops(self, outer: Sequence[str]) -> None:
        out = self.out
        if not outer:
            self.lane_range()
            return
        name = outer[0]
        with out.block(f"for (i64 {name} = 0; {name} < {index_text(self.facts.sizes[outer[0]])}; ++{name})"):
            self._outer_loops(outer[1:])

    def lane_range(self) -> None:
        """The lane axis from ``from`` to ``to``: whole steps, then what is left."""
        plan, out, facts = self.plan, self.out, self.facts
        name, wide = plan.lane, plan.lanes * plan.unroll
        size = facts.sizes[plan.lane]
        outside = self.frame(plan.lane)
        invariant = outside.emit_invariants(
            facts.statements, {plan.lane, plan.tile, plan.repeated, *facts.raxes}
        )
        rows = None if self.streaming or self.tables else byte_rows(facts, plan)
        if rows is not None:
            rows.emit(outside)
            return
        out.line(f"i64 {name} = from;")
        with out.block(f"for (; {name} + {wide} <= to; {name} += {wide})"):
            frame = self.frame(plan.lane, plan.unroll)
            frame.env = dict(outside.env)
            self._rows(frame, invariant)
        if is_multiple(size, plan.lanes) and plan.unroll == 1:
            return
        with out.block(f"for (; {name} < to; {name} += {plan.lanes})"):
            tail = None
            if not is_multiple(size, plan.lanes):
                # known where nothing but the end of a row is left
                rest = size % plan.lanes if plan.unroll == 1 and isinstance(size, int) else ""
                out.line(f"const i64 n = {rest or f'index_min({plan.lanes}, to - {name})'};")
                tail = "n"
            frame = self.frame(plan.lane, 1, tail)
            frame.env = dict(outside.env)
            self._rows(frame, invariant)
