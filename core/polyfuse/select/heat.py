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
from polyfuse.select.workshop import Entry, Ordered, Workshop

__all__ = ["Bout", "Heat"]

_log = get_logger("select")

# What is faster by less than this is not worth a further round, nor better than the favourite.
_GAIN = 0.98
# Around another backend's fastest entry, too, if it is no slower than the leader by more than this.
_RIVAL = 1.1
# Around a generated entry slower than the leader by more than this, there is nothing to find.
_NEAR = 1.3


class Bout(ABC):
    """A question that a race answers.

    Attributes:
        key: under which the answer is remembered.
        problem: the operands.
        favourite: the entry that wins unless another is faster by more than the noise; empty: none.
        uses: how often the program does it.
        spared: how many configurations were not built, because earlier races taught that they would not win.
    """

    key: str
    problem: Problem
    favourite: str = ""
    uses: int = 1
    spared: int = 0

    @abstractmethod
    def opening(self) -> Sequence[Entry]:
        """The entries of the first round, the safest first."""

    def usual(self) -> Sequence[Entry]:
        """The entry that is used where nobody searches for a better one."""
        return ()

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
        self._works: dict[tuple[object, ...], str] = {}
        self._fresh: list[Entry] = []
        self._before: Entry | None = None

    def enter(self, entries: Sequence[Entry]) -> bool:
        """Let these take part in the next round; returns whether any is new."""
        new: dict[str, Entry] = {}
        for entry in entries:
            if entry.name not in self.entries and not self._is_known(entry):
                new[entry.name] = entry
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
        for entry in filter(workshop.is_built, self.pending()):
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
        return self.enter([near for entry in (best, *self._rivals(best)) for near in self.bout.around(entry)])

    def measured(self, final: bool = False) -> Measured:
        """What is known; at the end, with the winner."""
        best = self._leader() if final else None
        if best is not None and self.bout.favourite in self.entries:
            held = self.times.get(self.bout.favourite, LOST)
            if self.times[best.name] > _GAIN * held:
                best = self.entries[self.bout.favourite]
        return Measured(dict(self.times), best.name if best is not None else None, self.bout.problem.about)

    def _is_known(self, entry: Entry) -> bool:
        """Whether another name stands for the same work: configurations that give equal code."""
        work = tuple(
            (step.backend.name, step.source.key, step.operands) if isinstance(step, Ordered) else step
            for step in entry.steps
        )
        if not work or self._works.setdefault(work, entry.name) == entry.name:
            return False
        _log.info("%s is the same as %s", entry.name, self._works[work])
        return True

    def _rivals(self, best: Entry) -> list[Entry]:
        """The fastest entry of each other backend that is close to the best."""
        limit = _RIVAL * self.times[best.name]
        others = {e.backend.name for e in self.entries.values() if e.backend not in (None, best.backend)}
        fastest = [
            self._least(
                [e for e in self.entries.values() if e.backend is not None and e.backend.name == name]
            )
            for name in sorted(others)
        ]
        return [entry for entry in fastest if entry is not None and self.times[entry.name] <= limit]

    def _leader(self) -> Entry | None:
        return self._least(list(self.entries.values()))

    def _generated(self) -> Entry | None:
        return self._least([entry for entry in self.entries.values() if entry.backend is not None])

    def _least(self, entries: Sequence[Entry]) -> Entry | None:
        timed = [entry for entry in entries if self.times.get(entry.name, LOST) != LOST]
        return min(timed, key=lambda entry: self.times[entry.name], default=None)
