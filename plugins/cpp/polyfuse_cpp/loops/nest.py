"""The sections of one parallel point: loops over reduction axes, and the statements at their levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyfuse.ir.kernel import Section
from polyfuse.ir.statements import IndexValue, Load, Reduce, Scan, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit import Access, is_multiple
from polyfuse.symbolic import IndexLike, axis, coefficient, free_axes, substitute
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.reductions import BLOCK, Reducer
from polyfuse_cpp.loops.scans import Scanner
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.register_transpose import transpose_tiles
from polyfuse_cpp.tiling import Plan

CHEAP = 16
"""Price of a tile's row up to which the rows are written side by side, and stay in registers."""

_APART, _AHEAD, _LINE = (512, 4096), 4, 64
"""Bytes between rows where a loop over rows asks ahead, for how many rows, and bytes of a cache line."""

_BLOCK = 256 << 10
"""Bytes of rows that the second cache holds beside others."""

_UNCACHED = 4 << 20
"""Bytes of an argument that the second cache does not hold."""

_LONG = 256
"""Steps of a floating-point sum beyond which it is summed in blocks."""


def emit_sections(plan: Plan, frame: Frame, done: frozenset[int] = frozenset()) -> None:
    """Write all sections of a point, except for statements (by identity) that were written further out."""
    for section, unroll in zip(frame.facts.kernel.sections, plan.unrolls, strict=True):
        if section.looped and plan.raxes:
            _Looped(section, plan, frame, done, unroll if plan.across else 1).emit()
        else:
            for stmt in section.body:
                if id(stmt) not in done:
                    frame.emit(stmt)


@dataclass
class _Looped:
    """One looped section at one point."""

    section: Section
    plan: Plan
    frame: Frame
    done: frozenset[int]
    unroll: int
    reducers: dict[int, Reducer] = field(default_factory=dict)
    scanners: dict[int, Scanner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        facts, plan, lane = self.facts, self.plan, self.plan.lane
        for stmt in self.section.body:
            if not isinstance(stmt, (Reduce, Scan)):
                continue
            along = bool(lane) and any(lane in facts.depends[a] for a in stmt.args)
            copies = self.unroll if plan.across else self.frame.copies if along else 1
            if isinstance(stmt, Scan):
                self.scanners[id(stmt)] = Scanner(stmt, plan.across or along, copies, plan.across)
                continue
            narrow = stmt.kind in ("argmin", "argmax") and self._is_index(stmt.args[1])
            self.reducers[id(stmt)] = Reducer(
                stmt,
                plan.across,
                plan.across or along,
                copies,
                ordered=self._ordered(stmt),
                blocked=self._needs_blocks(stmt),
                narrow=narrow,
            )

    @property
    def facts(self) -> Facts:
        """Facts of the kernel."""
        return self.frame.facts

    def _is_index(self, name: str) -> bool:
        """Whether a value is that of an index expression and held in 32 bits."""
        made = any(s.targets[:1] == (name,) and s.op == "index" for s in self.section.body)
        return made and self.facts.fits_i32(name)

    def _ordered(self, stmt: Reduce) -> bool:
        """Whether the positions that an arg-reduction sees start at zero and grow in the order of the
        loops.
        """
        if stmt.kind not in ("argmin", "argmax"):
            return False
        source = next((s for s in self.section.body if s.targets and s.targets[0] == stmt.args[1]), None)
        if not isinstance(source, IndexValue):
            return False
        index = source.index
        if set(free_axes(index)) - set(self.plan.raxes) or (isinstance(index, int) or index.const):
            return False
        span: IndexLike = 1
        for name in reversed(self.plan.raxes):
            size = self.facts.sizes[name]
            if size == 1:
                continue
            if coefficient(index, name) != span:
                return False
            span = span * size
        return True

    def _needs_blocks(self, stmt: Reduce) -> bool:
        kind = stmt.kind
        if kind != "sum" or not stmt.dtype.is_float:
            return False
        inner = self.facts.sizes[self.plan.raxes[-1]]
        if len(self.plan.raxes) > 1 or not isinstance(inner, int):
            return True
        step = self.plan.lanes * self.unroll if self.plan.across else 1
        return inner // step > _LONG

    def emit(self) -> None:
        """Write the loops, and the results after them."""
        out = self.frame.out
        if self.reducers:
            self.frame.features.update(("reduce", "block_reduce"))
        for scanner in self.scanners.values():
            scanner.declare(out)
        for state in self.reducers.values():
            state.declare(out)
            if state.kind in ("online_softmax", "softmax_merge"):
                self.frame.features.update(
                    ("online", "math_f64" if state.stmt.dtype is DType.f64 else "math_f32")
                )
        with out.block():
            inner = (
                self.frame.child(lane=None, copies=1, tail=None) if self.plan.across else self.frame.child()
            )
            inner.out = out
            self._at_level(0, inner)
            self._loop(0, inner)
        for reducer in self.reducers.values():
            reducer.finish(self.frame)

    # Statements by loop level.

    def _level(self, stmt: Statement) -> int:
        """How many loops a statement has around it."""
        last = len(self.plan.raxes)
        if isinstance(stmt, (Store, Reduce, Scan)):
            return last
        stored = (s.buffer for s in self.section.body if isinstance(s, Store))
        if isinstance(stmt, Load) and stmt.buffer in stored:
            return last
        depends = self.facts.depends_of(stmt)
        return max((k + 1 for k, r in enumerate(self.plan.raxes) if r in depends), default=0)

    def _at_level(self, level: int, frame: Frame) -> None:
        for stmt in self.section.body:
            if id(stmt) not in self.done and self._level(stmt) == level:
                frame.emit(stmt)

    def _loop(self, depth: int, frame: Frame) -> None:
        name = self.plan.raxes[depth]
        if depth == len(self.plan.raxes) - 1:
            self._innermost(name, frame)
            return
        low, high = self._limits(name)
        with frame.out.block(f"for (i64 {name} = {low}; {name} < {high}; ++{name})"):
            inner = frame.child()
            self._at_level(depth + 1, inner)
            self._loop(depth + 1, inner)

    def _limits(self, name: str) -> tuple[str, str]:
        for limited, low, high in self.plan.limits:
            if limited == name:
                return low, high
        return "0", index_text(self.facts.sizes[name])

    # The innermost loop.

    def _innermost(self, name: str, frame: Frame) -> None:
        low, high = self._limits(name)
        out = frame.out
        width = self.plan.lanes * self.unroll if self.plan.across else 1
        states = self.reducers.values()
        if not any(r.blocked or (r.buffered and not r.merges) for r in states):
            self._steps(name, frame, low, high)
            return
        size = self.facts.sizes[name]
        if isinstance(size, int) and size <= BLOCK * width:
            self._steps(name, frame, low, high)
            waiting = f"({high} - {low}) / {width}" if width > 1 else f"{high} - {low}"
            for reducer in states:
                reducer.flush(out, waiting)
            return
        with out.block(f"for (i64 {name}_b = {low}; {name}_b < {high}; {name}_b += {BLOCK * width})"):
            out.line(f"const i64 {name}_e = index_min({name}_b + {BLOCK * width}, {high});")
            self._steps(name, frame, f"{name}_b", f"{name}_e")
            for reducer in states:
                reducer.flush(out, f"({name}_e - {name}_b) / {width}")

    def _steps(self, name: str, frame: Frame, low: str, high: str) -> None:
        out, plan = frame.out, self.plan
        transposed = self._transposed()
        if transposed:
            self._tiles(name, frame, low, high, transposed)
            return
        if not plan.across:
            with out.block(f"for (i64 {name} = {low}; {name} < {high}; ++{name})"):
                self._ask_ahead(name, frame)
                self._body(frame.child(), f"{name} - {low}")
            return
        size, lanes, wide = self.facts.sizes[name], plan.lanes, plan.lanes * self.unroll
        # the part of an axis that a chunk has may end anywhere, whatever the size of the axis
        limited = any(n == name for n, _, _ in plan.limits)
        out.line(f"i64 {name} = {low};")
        waiting = f"({name} - {low}) / {wide}"
        if not isinstance(size, int) or size >= wide:
            with out.block(f"for (; {name} + {wide} <= {high}; {name} += {wide})"):
                self._body(frame.child(lane=name, copies=self.unroll), waiting)
        if self.unroll > 1 and (limited or not is_multiple(size, wide)):
            with out.block(f"for (; {name} + {lanes} <= {high}; {name} += {lanes})"):
                self._body(frame.child(lane=name, copies=1), waiting)
        if limited or not is_multiple(size, lanes):
            with out.block(f"if ({name} < {high})"):
                out.line(f"const i64 n = {high} - {name};")
                self._body(frame.child(lane=name, copies=1, tail="n"), waiting)

    def _ask_ahead(self, name: str, frame: Frame) -> None:
        """Ask for lines that follow: the machine itself only follows lines that lie side by side, and a strip
        of columns has few of each row.
        """
        lane, last = self.plan.lane, len(self.plan.raxes)
        if not lane or frame.tail:
            return
        for stmt in self.section.body:
            if (
                not isinstance(stmt, Load)
                or stmt.indirect
                or stmt.mask is not None
                or self._level(stmt) != last
            ):
                continue
            size = self.facts.memory[stmt.buffer].itemsize
            step = coefficient(stmt.index, name)
            if (
                coefficient(stmt.index, lane) != 1
                or not isinstance(step, int)
                or stmt.buffer in self.facts.row_buffers
            ):
                continue
            if step * size < _APART[0] or self.facts.bytes_of(stmt.buffer) < _UNCACHED:
                continue
            following = self._following_rows(stmt, name, step, frame)
            if following is None and step * size <= _APART[1]:
                following = stmt.index + _AHEAD * step
            if following is None:
                continue
            each = max(1, _LINE // (self.plan.lanes * size))
            for copy in range(0, frame.copies, each):
                at = index_text(following + copy * self.plan.lanes)
                frame.out.line(f"__builtin_prefetch({stmt.buffer} + {at});")

    def _following_rows(self, stmt: Load, name: str, step: int, frame: Frame) -> IndexLike | None:
        """Where the rows behind those of this loop begin, if they are as many and whole: each strip asks for
        its share of them, line by line. None where they do not follow, or do not fit into the second cache.
        """
        lane, rows = self.plan.lane, self.facts.sizes[name]
        if not isinstance(rows, int) or self.facts.sizes[lane] != step or len(self.plan.raxes) > 1:
            return None
        block, size = rows * step, self.facts.memory[stmt.buffer].itemsize
        if block * size > _BLOCK or any(n == name for n, _, _ in self.plan.limits):
            return None
        if not any(coefficient(stmt.index, other) == block for other in self.plan.axes):
            return None
        here, row = axis(lane, step), axis(name, rows)
        share = here * rows + row * (frame.copies * self.plan.lanes)
        return substitute(stmt.index, {lane: 0, name: 0}) + block + share

    # Accesses that run along the innermost loop, and jump along the lanes.

    def _transposed(self) -> tuple[Access, ...]:
        """Those of this section."""
        own = {id(stmt) for stmt in self.section.body}
        return () if self.plan.tile else tuple(a for a in self.plan.tiled if id(a.stmt) in own)

    def _tiles(self, name: str, frame: Frame, low: str, high: str, transposed: Sequence[Access]) -> None:
        """The innermost loop in tiles of as many steps as a vector has lanes."""
        out, size, lanes = frame.out, self.facts.sizes[name], self.plan.lanes
        self.frame.features.add("tile")
        base = f"{name}_t"
        fixed = isinstance(size, int) and low == "0" and not any(n == name for n, _, _ in self.plan.limits)
        out.line(f"i64 {base} = {low};")
        if not fixed or size >= lanes:  # type: ignore[operator]
            with out.block(f"for (; {base} + {lanes} <= {high}; {base} += {lanes})"):
                self._tile(name, frame, low, str(lanes), transposed)
        rest = size % lanes
        if fixed and rest != 0:
            with out.block():
                self._tile(name, frame, low, str(rest), transposed)
        elif not is_multiple(size, lanes) or not fixed:
            with out.block(f"if ({base} < {high})"):
                out.line(f"const i64 m = {high} - {base};")
                self._tile(name, frame, low, "m", transposed)

    def _tile(self, name: str, frame: Frame, low: str, count: str, transposed: Sequence[Access]) -> None:
        """One tile: `count` steps from the tile's base on."""
        out, lanes = frame.out, str(self.plan.lanes)
        first = count if count not in (lanes, "m") and not frame.tail else ""
        extent = f", {frame.tail or lanes}, {count}" if frame.tail or count == "m" else ""
        tiles = transpose_tiles(transposed, frame, name, f"{name}_t", extent, first)
        if count != "m" and frame.copies == 1 and self.facts.cost_of(self.section.body) <= CHEAP:
            out.line(f"#pragma GCC unroll {lanes}")
        with out.block(f"for (int k = 0; k < {count}; ++k)"):
            out.line(f"const i64 {name} = {name}_t + k;")
            self._body(frame.child(tiles=tiles.tiles), f"{name} - {low}")
        for line in tiles.after:
            out.line(line)

    def _body(self, frame: Frame, waiting: str) -> None:
        last = len(self.plan.raxes)
        for stmt in self.section.body:
            if id(stmt) in self.done or self._level(stmt) != last:
                continue
            if stmt.op == "reduce":
                reducer = self.reducers[id(stmt)]
                for copy in range(frame.copies if self.plan.across else reducer.copies):
                    reducer.step(frame, copy, waiting)
            elif stmt.op == "scan":
                self.scanners[id(stmt)].step(frame)
            else:
                frame.emit(stmt)
