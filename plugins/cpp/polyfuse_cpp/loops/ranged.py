"""One stage of a kernel whose axes are cut into ranges: rows one by one, each of them range by range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from polyfuse.ir.statements import Load
from polyfuse.symbolic import product
from polyfuse_cpp.cuts.ranges import Range, Ranges
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.nest import emit_sections
from polyfuse_cpp.loops.stage import StageText
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.tiling import Plan


@dataclass
class RangedText(StageText):
    """The function that does a range of a kernel's rows."""

    ranges: Ranges

    def items_text(self) -> str:
        """The number of rows, as text."""
        return index_text(product(self.facts.sizes[a] for a in self.plan.axes[:-1]))

    def share_text(self) -> str:
        """The number of rows that threads must not divide, as text; empty for one."""
        return str(self.together) if self.together > 1 else ""

    def _cell(self, facts: Facts, plan: Plan) -> StageText:
        """The text of a part of a row, which belongs to the thread that has the row."""
        cell = StageText(facts, plan, self.out, self.features, self.name)
        cell.together = self.together
        if not self.streaming:
            # the function has no parameter that says whether to
            cell.streaming = frozenset()
        return cell

    def _items(self) -> None:
        outer = self.plan.axes[:-1]
        self._odometer(outer, "begin")
        with self.out.block("for (i64 item = begin; item < end; ++item)"):
            if self.ranges.inner:
                self._inside()
            else:
                self._branches(tuple(self.ranges.axes.items()), ())
            self._advance(outer)

    def _inside(self) -> None:
        """A row within the range of each axis, and any other one."""
        out, found = self.out, {name: part for name, (part,) in self.ranges.axes.items()}
        tests = []
        for name, part in found.items():
            first, end = index_text(part.first), index_text(part.first + part.size)
            tests.append(f"{name} >= {first} && {name} < {end}")
        size = index_text(self.facts.sizes[self.plan.lane])
        for cell, opening in ((0, f"if ({' && '.join(tests)})"), (1, "else ")):
            facts, plan = self.ranges.cells[(cell,)]
            with out.block(opening):
                if cell == 0:
                    for name, part in found.items():
                        out.line(f"const i64 {part.name} = {name} - {_plain(index_text(part.first))};")
                out.line(f"const i64 from = 0, to = {size};")
                with self._together((cell,)):
                    self._cell(facts, plan).lane_range()

    def _branches(self, axes: Sequence[tuple[str, tuple[Range, ...]]], cell: tuple[int, ...]) -> None:
        """What is done in the ranges that a row lies in: of `axes`, and (`cell`) those of the axes before."""
        (name, ranges), *inner = axes
        out = self.out
        for number, part in enumerate(ranges):
            if not inner:
                with out.block():
                    self._range(part, (*cell, number))
                continue
            end = index_text(part.first + part.size)
            test = f"if ({name} < {end})" if number + 1 < len(ranges) else ""
            with out.block(f"{'else ' if number else ''}{test}"):
                out.line(f"const i64 {part.name} = {name} - {_plain(index_text(part.first))};")
                self._branches(inner, (*cell, number))

    @contextmanager
    def _together(self, cell: tuple[int, ...]) -> Iterator[None]:
        """Rows that are done together where a cell and this thread have so many; else what follows."""
        if self.ranges.together is None or self.ranges.together[0] != cell:
            yield
            return
        rows, out = self.ranges.together[1], self.out
        last = index_text(rows.size - (rows.count - 1))
        with out.block(f"if ({rows.axis} < {last} && item + {rows.count} <= end)"):
            text = _TogetherText(rows.facts, rows.plan, out, self.features, self.name, rows.ahead)
            text.together = self.together
            text.lane_range()
            moving = next(a for a in reversed(self.plan.axes[:-1]) if self.facts.sizes[a] != 1)
            out.line(f"item += {rows.count - 1};")
            out.line(f"{moving} += {rows.count - 1};")
        with out.block("else"):
            yield

    def _range(self, part: Range, cell: tuple[int, ...]) -> None:
        """One range of one row."""
        facts, plan = self.ranges.cells[cell]
        text = self._cell(facts, plan)
        text.tables = None
        size = index_text(part.size)
        if plan.lane:
            self.out.line(f"const i64 from = 0, to = {size};")
            with self._together(cell):
                text.lane_range()
            return
        frame = text.frame(None)
        done = frame.emit_invariants(facts.statements, {part.name})
        with self.out.block(f"for (i64 {part.name} = 0; {part.name} < {size}; ++{part.name})"):
            emit_sections(plan, frame.child(), done)


@dataclass
class _TogetherText(StageText):
    """A part of some rows, which asks for what the rows after them read."""

    ahead: tuple[Load, ...]

    def _rows(self, frame: Frame, invariant: frozenset[int]) -> None:
        for load in self.ahead if frame.tail is None else ():
            self.out.line(f"__builtin_prefetch({load.buffer} + {index_text(load.index)});")
        super()._rows(frame, invariant)


def _plain(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
