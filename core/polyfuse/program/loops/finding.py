"""The loop that the steps of one of many equal layers make.

A program is planned with a few of the layers: one that stands for those which were left out, and the one
behind these. Where both have the same steps but for names, all in between have them, too: what is alive
at the end of the one is what is alive at the end of the other, so that memory is reused alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse.ir.graph import GraphOutput
from polyfuse.ir.nodes import View
from polyfuse.ir.records import changed
from polyfuse.program.memory import Lifetime
from polyfuse.program.partitions import Span, names_in, uses
from polyfuse.program.steps import Free, Loop, Ref, Step


class NotALoop(Exception):
    """The steps of equal layers are not equal, so that all of them are planned."""


@dataclass(frozen=True)
class Skipped:
    """The layers that a schedule leaves out.

    Attributes:
        first, behind, end: the steps of the schedule where the layer that stands for them begins, where it
            ends, and where the one behind the gap ends.
        copies: how many are left out.
        inputs: of the graph, that single layers are given, in lists of what corresponds from one to the next.
        readers: for each of these the first layer that reads it; 1 is the one that stands for others.
        outputs: all results of the graph, each as the layer that stands for others makes it, and how many
            layers later it is made.
        pairs: compares steps, and returns the names in the former with those that they match in the latter.
    """

    first: int
    behind: int
    end: int
    copies: int
    inputs: Sequence[Sequence[str]]
    readers: Mapping[str, int]
    outputs: Sequence[tuple[GraphOutput, int]]
    pairs: Callable[[Sequence[Step], Sequence[Step]], Mapping[str, str]]

    @property
    def given(self) -> Iterator[tuple[str, str]]:
        """The inputs that layers which are left out are given, and of each the one that stands for it."""
        for row in self.inputs:
            for at, name in enumerate(row):
                if 1 < self.readers[name] <= self.copies + 1:
                    yield name, row[at - self.readers[name] + 1]

    def held(self, lifetimes: Sequence[Lifetime]) -> _Held:
        """The results that they make."""
        mine = (b.size for b in lifetimes if b.last is None and self.first <= b.first < self.behind)
        last = max((b.last or b.first for b in lifetimes), default=self.behind)
        return _Held(self.copies * sum(mine), self.behind, max(last, self.end))


@dataclass(frozen=True)
class _Held:
    """Memory that is in use from one step on."""

    size: int
    first: int
    last: int


class LoopFinder:
    """The loop in a program that is being planned.

    Args:
        steps: of the program, without its return.
        marks: the steps where the layer that stands for others begins, where it ends, and where the one
            behind the gap ends.
        skipped: what was left out.
        known: variables that are there from the start and stay.

    Raises:
        NotALoop: there is none.
    """

    def __init__(
        self, steps: Sequence[Step], marks: Sequence[int], skipped: Skipped, known: frozenset[str]
    ) -> None:
        self.start, self.stop, end = marks
        self.skipped, self._known = skipped, known
        one, two = steps[self.start : self.stop], steps[self.stop : end]
        if len(one) != len(two):
            raise NotALoop("memory is managed otherwise in one layer than in another")
        self._span = Span(steps, (self.start, self.stop), known, frozenset())
        self._at = {name: (row, at) for row in skipped.inputs for at, name in enumerate(row)}
        self._columns: dict[str, tuple[str, ...]] = {}
        self.carried: dict[str, str] = {}
        self._saved: dict[str, None] = {}
        # what a layer's results are called that the kernels of the next layer make
        self._next: dict[str, str] = {}
        for name, other in skipped.pairs(one, two).items():
            if name in self._span.made:
                self._next[other] = name
            elif name != other:
                self._differs(name, other)
        self._check(steps[end:])

    def _differs(self, name: str, other: str) -> None:
        """Take in a variable from outside the loop that is another one in each turn."""
        if name in self._at:
            row, at = self._at[name]
            reader = self.skipped.readers[name]
            if reader == 1 and row[at + self.skipped.copies + 1 :][:1] == [other]:
                self._columns[name] = self._column(name)
                return
            if reader != 0 or row[at + 1 :][:1] != [other] or self.skipped.readers[other] != 1:
                raise NotALoop(f"{name} is given to several layers")
            self._columns[other] = self._column(other)
        elif other not in self._span.made:
            raise NotALoop(f"{name} comes from further away than the layer before")
        if other in self._span.killed:
            raise NotALoop(f"{other} is gone before the next layer takes it")
        self.carried[name] = other

    def _column(self, name: str) -> tuple[str, ...]:
        row, at = self._at[name]
        return tuple(row[at : at + self.skipped.copies + 1])

    def _check(self, rest: Sequence[Step]) -> None:
        """Whether what follows the two layers reads nothing that has another meaning behind the loop."""
        touched = {*self.carried, *self._columns}
        for step in rest:
            if not touched.isdisjoint(step.names if isinstance(step, Free) else uses(step)):
                raise NotALoop("a layer's variable is read far behind it")

    def changes(self, value: Any) -> bool:
        """Whether a result is made in the loop, or given to it."""
        known = self._span.made, self.carried, self._at, self._next
        return any(name in names for name in names_in(value) for names in known)

    def result(self, value: Any, copy: int, views: Mapping[View, str]) -> Any:
        """A result of a turn that is made as `value` is in the first one.

        Args:
            copy: how many turns later it is made.
            views: variables that are views.
        """
        if isinstance(value, View):
            known = views.get(value, "")
            if known in self._span.made or known in self._next:
                return Ref(self._later(known, copy))
            return changed(value, buffer=self._later(value.buffer, copy))
        return Ref(self._later(value.name, copy))

    def _later(self, name: str, copy: int) -> str:
        if name in self._span.made:
            if name in self._span.killed:
                raise NotALoop(f"{name} is gone before it is returned")
            self._saved[name] = None
            return Loop.result(name, copy)
        if name in self._next and copy < self.skipped.copies:
            return self._later(self._next[name], copy + 1)
        if name in self.carried and copy:
            return self._later(self.carried[name], copy - 1)
        if name in self._at:
            row, at = self._at[name]
            if at + copy >= len(row):
                raise NotALoop(f"{name} is given to layers, and returned")
            found = row[at + copy]
            return Loop.outside(found) if found in self._columns else found
        if copy and name not in self._next:
            raise NotALoop(f"{name} is a result of each layer")
        return name

    def loop(self, first: int) -> Loop:
        """The loop of the program, whose steps begin at so many."""
        killed = self._span.killed
        given = {self.carried[name] for name in self.carried if name in killed}
        return Loop(
            self.start + first,
            self.stop + first,
            self.skipped.copies + 1,
            tuple(self._columns.values()),
            tuple(self.carried.items()),
            tuple(name for name in (*self._columns, *self.carried) if name in killed or name in given),
            tuple(self._saved),
        )
