"""One race: candidates take turns, those that lag behind leave, the least time of each counts.

What else the machine does can only add to a time, and turns spread it over all, so the least of a few
samples is what a candidate can do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.base.log import get_logger
from polyfuse.base.text import shorten
from polyfuse.cache.timings import LOST
from polyfuse.select.tracks import Fault, Track
from polyfuse.select.work import Candidate, Problem

__all__ = ["Rules", "Watcher", "race", "tell"]

_log = get_logger("select")

Watcher = Callable[[str, float], None]


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    Attributes:
        verify: whether a candidate whose results differ from the first one's loses.
        rounds: samples taken of those that stay to the end.
        hopeless: times the best after which one that took so long in a single run is not timed again.
        behind: the same after a round, which is measured better.
        until: the `time.monotonic` after which no further round begins.
    """

    verify: bool = False
    rounds: int = 7
    hopeless: float = 2.0
    behind: float = 1.25
    until: float = float("inf")


def race(
    track: Track,
    problem: Problem,
    candidates: Sequence[Candidate],
    rules: Rules,
    watch: Watcher | None = None,
    best: float = LOST,
) -> Mapping[str, float]:
    """Milliseconds of each candidate by name, `LOST` where it failed, with a line in the log for each such.

    Args:
        watch: is told of each candidate's time when it is known, and when it is known better.
        best: milliseconds of the best so far, in an earlier race of this problem.
    """
    times: dict[str, float] = {}
    try:
        track.prepare(problem)
    except Fault as fault:
        _log.warning("%s cannot be timed: %s", problem.about, fault)
        return dict.fromkeys((c.name for c in candidates), LOST)
    running: list[Candidate] = []
    reference: Candidate | None = None
    for candidate in candidates:
        taken = _attempt(track.first, problem, candidate)
        if rules.verify and taken != LOST:
            reference = reference or candidate
            if reference is not candidate and not _is_verified(track, problem, candidate, reference):
                taken = LOST
        times[candidate.name] = taken
        best = min(best, taken)
        if taken != LOST and taken <= rules.hopeless * best:
            running.append(candidate)
        if watch is not None:
            watch(candidate.name, taken)
    for turn in range(rules.rounds):
        # a single cold run says little, so the first round starts the count anew
        round_times = {c.name: _attempt(track.sample, problem, c) for c in running}
        for name, taken in round_times.items():
            lost = LOST in (taken, times[name])
            times[name] = LOST if lost else taken if turn == 0 else min(taken, times[name])
            if watch is not None:
                watch(name, times[name])
        best = min((times[name] for name in round_times), default=LOST)
        running = [c for c in running if times[c.name] <= rules.behind * best and times[c.name] != LOST]
        if (len(running) < 2 and turn) or time.monotonic() > rules.until:
            break
    return times


def _attempt(action: Callable[[Candidate], float], problem: Problem, candidate: Candidate) -> float:
    try:
        return action(candidate)
    except Fault as fault:
        tell(problem, candidate.name, str(fault))
        return LOST


def _is_verified(track: Track, problem: Problem, candidate: Candidate, reference: Candidate) -> bool:
    try:
        distance = track.check(candidate, reference)
    except Fault as fault:
        tell(problem, candidate.name, str(fault))
        return False
    if distance > 1:
        reason = f"its result is not that of {reference.name} ({distance:.3g} x the tolerance)"
        tell(problem, candidate.name, reason)
        return False
    return True


def tell(problem: Problem, name: str, reason: str) -> None:
    """Say why a candidate lost."""
    _log.warning("%s is out of the race for %s: %s", name, problem.about, shorten(reason, 200))
