"""A schedule of which some layers may be left out, and that of all of them, made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from polyfuse.compiler.layers.repeats import Expansion
from polyfuse.ir.kernel import Alias, Kernel
from polyfuse.program import Program
from polyfuse.schedule import Decision, Schedule
from polyfuse.schedule.frozen_calls import together
from polyfuse.schedule.kernels.aliasing import without_refused


@dataclass(frozen=True)
class Layers:
    """A schedule, or what one of a few equal layers stands for.

    Attributes:
        few: the schedule that was made.
        expansion: what puts in the layers that it leaves out; None: it is that of the whole graph.
        refused: with `few` as it is to be planned, pairs of arguments that generators refused to have in one
            memory, by (backend, kernel); None: it is as it was scheduled.
    """

    few: Schedule
    expansion: Expansion | None
    refused: Mapping[tuple[str, Kernel], Sequence[Alias]] | None = None

    def planned(
        self,
        few: Schedule,
        separate: tuple[Decision, ...],
        refused: Mapping[tuple[str, Kernel], Sequence[Alias]],
    ) -> Layers:
        """The same for a schedule as it is to be planned.

        Args:
            few: it.
            separate: the decisions by which it differs.
            refused: what they are made of, by (backend, kernel).
        """
        decisions = (*self.few.decisions, *separate)
        return Layers(replace(few, decisions=decisions), self.expansion, refused)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All decisions, in the order taken, and which layers are equal."""
        repeated = () if self.expansion is None else (self.expansion.decision,)
        return (*self.few.decisions, *repeated)

    @cached_property
    def whole(self) -> Schedule:
        """The schedule of all layers."""
        if self.expansion is None:
            return self.few
        found = self.expansion.whole
        if self.refused is not None:
            found, _ = without_refused(together(found), self.refused)
        return replace(found, decisions=self.decisions)

    def steps(self) -> Iterator[tuple[int, int]]:
        """The steps of all layers: of each the position of the one in `few` that it is like but for names,
        and how many layers later it is than that; of those behind that read another layer, one more than
        there are layers in between. 0: it is the same.
        """
        steps, expansion = self.few.steps, self.expansion
        if expansion is None:
            yield from ((at, 0) for at in range(len(steps)))
            return
        (first, behind, _), copies = expansion.span(self.few), expansion.copies
        yield from ((at, 0) for at in range(behind))
        yield from ((at, copy) for copy in range(1, copies + 1) for at in range(first, behind))
        for at in range(behind, len(steps)):
            yield at, copies + 1 if expansion.is_late(steps[at]) else 0

    def as_run(self, program: Program) -> Layers:
        """The same for what runs: all layers where the program has no loop."""
        return self if program.loop is not None else Layers(self.whole, None)
