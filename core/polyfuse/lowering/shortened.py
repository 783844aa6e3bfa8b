"""Lowering a graph as if it had fewer of the equal periods that it repeats itself in.

Of many periods, the first ones and the last ones are lowered. What the first of the last ones reads of the
period before it, it gets of the one that stands for those between them. Names that are numbered go on behind
the numbers that these would have taken, so that they stay when those are put in (`compiler.layers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from polyfuse.frontend.periods import BEFORE, NotRepeated, Periods

if TYPE_CHECKING:
    from polyfuse.lowering.context import LoweringContext


@dataclass(frozen=True)
class LeftOutResult:
    """A result of a graph that is made in a period that was passed over.

    Attributes:
        like: the position among the results of that of the period which stands for it.
        copy: how many periods behind that it is.
    """

    like: int
    copy: int


class Shortening:
    """Which periods are passed over, and what is known after lowering.

    Attributes:
        periods: of the graph.
        marks: the numbers of the next names, by prefix, where the period begins that stands for those that
            are passed over, where it ends, and where the one behind the gap ends.
        present: the positions of the results that are there, and of each whether it is made behind the gap.
        surveyed: nodes that are passed over, and those that are read by the same as they are.
        given: the inputs that they are given, with a number for those that are read alike.
    """

    def __init__(self, periods: Periods) -> None:
        self.periods = periods
        self.marks: list[Mapping[str, int]] = []
        self.present: dict[int, bool] = {}
        self._passed = periods.left_out()
        # those of the last one are read as those of the others are: in its own period and in the next
        last = periods.period(BEFORE - 1 + periods.skipped)
        self.surveyed: dict[Node, Node] = {
            node: like
            for number in range(BEFORE, BEFORE - 1 + periods.skipped)
            for node, like in zip(periods.period(number), last, strict=True)
        }
        left_out = range(BEFORE, BEFORE + periods.skipped)
        self.given: dict[Node, int] = {
            node: number
            for number, row in enumerate(periods.inputs)
            for node in row
            if periods.readers[node] in left_out
        }
        self._begin, self._gap = periods.period(BEFORE - 1)[0], periods.period(BEFORE)[0]
        self._end = periods.period(periods.count - 1)[0]
        self._early: set[Node] = set()
        self._own: dict[Node, Any] = {}
        self._ended = False
        self._positions: dict[Node, int] = {}
        self._missing: dict[int, tuple[Node, int]] = {}
        self._counts: tuple[dict[str, int], dict[str, int], int] = ({}, {}, 0)

    def passes(self, node: Node, ctx: LoweringContext) -> bool:
        """Whether a node, the next one of a graph, is passed over."""
        if node is self._begin:
            self.marks.append(ctx.numbers())
            self._counts = dict(ctx.report.native), dict(ctx.report.library), _others(ctx)
        elif node is self._gap:
            self._jump(ctx)
        elif node is self._end:
            self.marks.append(ctx.numbers())
            self._compare()
        elif self._own and self._ended:
            ctx.env.update(self._own)
            self._own.clear()
        self._ended = node is self.periods.nodes[-1]
        if len(self.marks) < 2:
            self._early.add(node)
        return node in self._passed

    def result(self, argument: Any, position: int) -> bool:
        """Record the next result of a graph; return whether it is present."""
        if isinstance(argument, Node) and argument in self._passed:
            self._missing[position] = self._passed[argument]
            return False
        late = isinstance(argument, Node) and argument not in self._early
        self.present[position] = late
        if isinstance(argument, Node):
            self._positions.setdefault(argument, position)
        return True

    @property
    def left_out(self) -> Mapping[int, LeftOutResult]:
        """The results that are not there, by their positions."""
        positions = self._positions
        return {at: LeftOutResult(positions[like], copy) for at, (like, copy) in self._missing.items()}

    def _compare(self) -> None:
        """See whether the period behind the gap made as much as the one before it."""
        begun, ended, later = self.marks
        for prefix, number in later.items():
            made = ended.get(prefix, 0) - begun.get(prefix, 0)
            if number != ended.get(prefix, 0) + made * (self.periods.skipped + 1):
                raise NotRepeated("what becomes of a layer is not what becomes of the next one")

    def _jump(self, ctx: LoweringContext) -> None:
        begun, ended, skipped = self.marks[0], ctx.numbers(), self.periods.skipped
        native, library, others = self._counts
        if _others(ctx) != others:
            raise NotRepeated("a layer checks what data say or runs an operator in eager mode")
        self.marks.append(ended)
        ctx.leave_out({name: skipped * (n - begun.get(name, 0)) for name, n in ended.items()})
        for table, before in ((ctx.report.native, native), (ctx.report.library, library)):
            for name, n in table.items():
                table[name] = n + skipped * (n - before.get(name, 0))
        for node, (like, copy) in self._passed.items():
            if copy == skipped and like in ctx.env:
                ctx.env[node] = ctx.env[like]
        # of inputs, too, those that the one which stands for the others reads
        for row in self.periods.inputs:
            for at, node in enumerate(row):
                if BEFORE <= self.periods.readers[node] < BEFORE + skipped:
                    self._own[node] = ctx.env[node]
                    ctx.env[node] = ctx.env[row[at - skipped]]


def _others(ctx: LoweringContext) -> int:
    """What each period would add to besides nodes and buffers."""
    return len(ctx.checks.rows) + len(ctx.report.fallbacks)
