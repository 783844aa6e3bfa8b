"""The order of steps in which computing goes on while collectives run.

A collective starts as soon as what it sends is there, and whoever computes that goes first; a wait stands
before the first step that reads what came. Where it would have to wait in fact, by estimates of times, other
steps come before it. Collectives keep the order of the trace among themselves, whatever the estimates say:
other processes, whose estimates may differ, start them in that order too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

_LAST: Final = 1 << 60

_Urgency = tuple[tuple[int, int], bool, int]
"""Sorts steps: those that serve a collective, then the program's order, and a wait before whom it is for."""


@dataclass(frozen=True)
class Task:
    """One step, numbered by its position in the order that is to be improved.

    Attributes:
        kind: whether it computes, starts a collective or waits for some.
        before: steps that it follows.
        seconds: that it takes; of a start, until the collective is done.
        ends: the starts that a wait is for.
        touches: storages of the program's own that it reads or writes.
    """

    kind: Literal["compute", "start", "wait"]
    before: frozenset[int]
    seconds: float = 0.0
    ends: tuple[int, ...] = ()
    touches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """An order and what is expected of it.

    Attributes:
        order: the steps by their numbers.
        seconds: from the first to the last.
        peak: most bytes in use at once.
        hidden: for each start, seconds of it in which steps compute.
    """

    order: tuple[int, ...]
    seconds: float
    peak: int
    hidden: dict[int, float]


def overlapped(
    tasks: Sequence[Task],
    sizes: dict[str, int],
    live_out: frozenset[str],
    growth: float,
    given: frozenset[str] = frozenset(),
) -> tuple[Plan, Plan]:
    """The plan of the given order, and the best one that is known.

    Args:
        sizes: bytes of each storage.
        live_out: storages that live on after the last step.
        growth: how much more memory may be in use than in the given order, as a part of the most that the
            steps themselves make.
        given: storages that are there before the first step.
    """
    order = tuple(range(len(tasks)))
    memory = _Memory(tasks, sizes, live_out, given)
    usual = _measured(order, tasks, memory)
    made = sizes | dict.fromkeys(given, 0)
    own = _measured(order, tasks, _Memory(tasks, made, live_out, frozenset())).peak
    limit = usual.peak + int(own * growth)
    best = usual
    for eager in (True, False):
        found = _measured(_Search(tasks, memory, limit, eager).order(), tasks, memory)
        if found.peak <= limit and found.seconds < best.seconds:
            best = found
    return usual, best


class _Memory:
    """Bytes in use while steps are taken one after another."""

    def __init__(
        self, tasks: Sequence[Task], sizes: dict[str, int], live_out: frozenset[str], given: frozenset[str]
    ) -> None:
        self.tasks, self.sizes, self.live_out, self.given = tasks, sizes, live_out, given
        self.begin()

    def begin(self) -> None:
        """Before the first step."""
        self.live = sum(self.sizes[name] for name in self.given)
        self.seen = set(self.given)
        self.left: dict[str, int] = {}
        for task in self.tasks:
            for name in task.touches:
                self.left[name] = self.left.get(name, 0) + 1

    def needs(self, number: int) -> int:
        """Bytes in use while a step runs, if it is the next."""
        new = (name for name in self.tasks[number].touches if name not in self.seen)
        return self.live + sum(self.sizes[name] for name in new)

    def take(self, number: int) -> None:
        """Go on behind a step."""
        self.live = self.needs(number)
        for name in self.tasks[number].touches:
            self.seen.add(name)
            self.left[name] -= 1
            if not self.left[name] and name not in self.live_out:
                self.live -= self.sizes[name]


class _Clock:
    """When steps end that are taken one after another, beside a network that does one thing at a time."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.now = 0.0
        self.network = 0.0
        self.done: dict[int, float] = {}
        self.idle: dict[int, float] = {}

    def take(self, number: int) -> None:
        """Go on behind a step."""
        task = self.tasks[number]
        if task.kind == "compute":
            self.now += task.seconds
        elif task.kind == "start":
            self.network = self.done[number] = max(self.now, self.network) + task.seconds
            self.idle[number] = 0.0
        else:
            for start in task.ends:
                self.idle[start] += max(0.0, self.done[start] - self.now)
                self.now = max(self.now, self.done[start])

    def is_over(self, wait: int) -> bool:
        """Whether nothing is left to wait for."""
        return all(self.done[start] <= self.now for start in self.tasks[wait].ends)


def _measured(order: tuple[int, ...], tasks: Sequence[Task], memory: _Memory) -> Plan:
    clock = _Clock(tasks)
    memory.begin()
    peak = 0
    for number in order:
        peak = max(peak, memory.needs(number))
        memory.take(number)
        clock.take(number)
    hidden = {start: max(0.0, tasks[start].seconds - idle) for start, idle in clock.idle.items()}
    return Plan(order, max(clock.now, clock.network), peak, hidden)


class _Search:
    """Takes steps one after another: of those that could be next, the one that serves collectives best."""

    def __init__(self, tasks: Sequence[Task], memory: _Memory, limit: int, eager: bool) -> None:
        self.tasks, self.memory, self.limit = tasks, memory, limit
        self.clock = _Clock(tasks)
        self.followers: list[list[int]] = [[] for _ in tasks]
        for number, task in enumerate(tasks):
            for earlier in sorted(task.before):
                self.followers[earlier].append(number)
        self.starts = [number for number, task in enumerate(tasks) if task.kind == "start"]
        lead = self._leads() if eager else [0] * len(tasks)
        self.rank = [(lead[number], number) for number in range(len(tasks))]
        for number in reversed(range(len(tasks))):
            if tasks[number].kind == "wait":
                # before the first that it is for
                readers = (self.rank[follower] for follower in self.followers[number])
                self.rank[number] = min(readers, default=(_LAST, number))

    def _leads(self) -> list[int]:
        """For each step, the first collective whose start follows it; a large number where none does."""
        found = [_LAST] * len(self.tasks)
        for rank, start in enumerate(self.starts):
            found[start] = rank
        for number in reversed(range(len(self.tasks))):
            for follower in self.followers[number]:
                found[number] = min(found[number], found[follower])
        return found

    def order(self) -> tuple[int, ...]:
        """All steps."""
        missing = [len(task.before) for task in self.tasks]
        ready: list[_Urgency] = []
        waiting = {number for number in self.starts if not missing[number]}
        starts = iter(self.starts)
        due = next(starts, None)
        for number, count in enumerate(missing):
            if not count and number not in waiting:
                insort(ready, self._urgency(number))
        taken: list[int] = []
        self.memory.begin()
        while len(taken) < len(self.tasks):
            number = self._next(ready, due if due in waiting else None)
            if number == due:
                due = next(starts, None)
            else:
                del ready[bisect_left(ready, self._urgency(number))]
            taken.append(number)
            self.memory.take(number)
            self.clock.take(number)
            for follower in self.followers[number]:
                missing[follower] -= 1
                if not missing[follower] and self.tasks[follower].kind == "start":
                    waiting.add(follower)
                elif not missing[follower]:
                    insort(ready, self._urgency(follower))
        return tuple(taken)

    def _next(self, ready: list[_Urgency], start: int | None) -> int:
        """Which of the steps that could be next is, given the collective that could be."""
        if start is not None and self._fits(start):
            return start
        fitting = (number for *_, number in ready if self._fits(number))
        first = next(fitting, None)
        if first is None:
            others = [number for *_, number in ready]
            return min(others if start is None else [*others, start])
        if self.tasks[first].kind == "wait" and not self.clock.is_over(first):
            return next((n for n in fitting if self.tasks[n].kind == "compute"), first)
        return first

    def _fits(self, number: int) -> bool:
        return self.memory.needs(number) <= self.limit

    def _urgency(self, number: int) -> _Urgency:
        return self.rank[number], self.tasks[number].kind != "wait", number
