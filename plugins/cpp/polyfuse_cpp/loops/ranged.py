"""One stage of a kernel whose axes are cut into ranges: rows one by one, each of them range by range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polyfuse.symbolic import product
from polyfuse_cpp.cuts.ranges import Range, Ranges
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.nest import emit_sections
from polyfuse_cpp.loops.stage import StageText
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.tiling import Plan

__all__ = ["RangedText"]


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

    def _range(self, part: Range, cell: tuple[int, ...]) -> None:
        """One range of one row."""
        facts, plan = self.ranges.cells[cell]
        text = self._cell(facts, plan)
        text.tables = None
        size = index_text(part.size)
        if plan.lane:
            self.out.line(f"const i64 from = 0, to = {size};")
            text.lane_range()
            return
        frame = text.frame(None)
        done = frame.emit_invariants(facts.statements, {part.name})
        with self.out.block(f"for (i64 {part.name} = 0; {part.name} < {size}; ++{part.name})"):
            emit_sections(plan, frame.child(), done)


def _plain(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
