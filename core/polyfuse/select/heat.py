"""The search for one answer: a first round, then rounds around the best so far, until none is faster."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from polyfuse.base.log import get_logger
from polyfuse.cache.timings import LOST, Measured
from polyfuse.select.contest import Rules, Watcher, race, tell
from polyfuse.select.process import Fault
from polyfuse.select.tracks import Track
from polyfuse.select.work import Candidate, Problem
from polyfuse.select.workshop import Entry, Workshop

__all__ = ["Bout", "Heat"]

_log = get_logger("select")

# What is faster by less than this is not worth a further round, nor better than the favourite.
_GAIN = 0.98
# Around a generated entry slower than the leader by more than this, there is nothing to find.
_NEAR = 1.3


class Bout(ABC):
    """A question that a race answers.

    Attributes:
        key: under which the answer is remembered.
        problem: the operands.
        favourite: the entry that wins unless another is faster by more than the noise; empty: none.
    """

    key: str
    problem: Problem
    favourite: str = ""

    @abstractmethod
    def opening(self) -> Sequence[Entry]:
        """The entries of the first round, the safest first."""

    @abstractmethod
    def around(self, best: Entry) -> Sequence[Entry]:
        """Entries that lie around the best so far."""

    def won(self, best: Entry, times: Mapping[str, float]) -> None:  # noqa: B027 - nothing by default
        """Hear who won, and the milliseconds of all."""


class Heat:
    """A bout under way.

    Attributes:
        entries: who takes part, by name.
        times: milliseconds of everyone timed, also of earlier searches that were cut short.
        seconds: how long it was timed.
    """

    def __init__(self, bout: Bout, known: Measured) -> None:
        self.bout = bout
        self.entries: dict[str, Entry] = {}
        self.times: dict[str, float] = dict(known.milliseconds)
        self.seconds = 0.0
        self._fresh: list[Entry] = []
        self._before: Entry | None = None

    def enter(self, entries: Sequence[Entry]) -> bool:
        """Let these take part in the next round; returns whether any is new."""
        new = {entry.name: entry for entry in entries if entry.name not in self.entries}
        self.entries |= new
        self._fresh = [entry for entry in new.values() if entry.name not in self.times]
        return bool(new)

    def pending(self) -> list[Entry]:
        """Who is timed in the next round: the new ones, beside the best so far."""
        leader = self._leader() if self._fresh else None
        return [leader, *self._fresh] if leader is not None else list(self._fresh)

    def time(self, track: Track, workshop: Workshop, rules: Rules, watch: Watcher | None = None) -> None:
        """Run the round."""
        begun = time.monotonic()
        candidates: list[Candidate] = []
        for entry in self.pending():
            try:
                candidates.append(workshop.candidate(entry))
            except Fault as fault:
                self.times[entry.name] = LOST
                tell(self.bout.problem, entry.name, str(fault))
        fresh = {entry.name for entry in self._fresh}
        if any(candidate.name in fresh for candidate in candidates):
            self.times |= race(track, self.bout.problem, candidates, rules, watch)
        self.seconds += time.monotonic() - begun

    def goes_on(self) -> bool:
        """Enter what lies around the best generated entry, if the search has not come to its end."""
        best, leader = self._generated(), self._leader()
        if best is None or leader is None or self.times[best.name] > _NEAR * self.times[leader.name]:
            return False
        before = self._before
        if before is not None and self.times[best.name] > _GAIN * self.times[before.name]:
            return False
        self._before = best
        return self.enter(self.bout.around(best))

    def measured(self, final: bool = False) -> Measured:
        """What is known; at the end, with the winner."""
        best = self._leader() if final else None
        if best is not None and self.bout.favourite in self.entries:
            held = self.times.get(self.bout.favourite, LOST)
            if self.times[best.name] > _GAIN * held:
                best = self.entries[self.bout.favourite]
        return Measured(dict(self.times), best.name if best is not None else None, self.bout.problem.about)

    def _leader(self) -> Entry | None:
        return self._least(list(self.entries.values()))

    def _generated(self) -> Entry | None:
        return self._least([entry for entry in self.entries.values() if entry.backend is not None])

    def _least(self, entries: Sequence[Entry]) -> Entry | None:
        timed = [entry for entry in entries if self.times.get(entry.name, LOST) != LOST]
        return min(timed, key=lambda entry: self.times[entry.name], default=None)
