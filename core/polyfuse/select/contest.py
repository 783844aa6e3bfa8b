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

# How far behind the best one may be after the first rounds.
_ROUGH = (3.0, 1.6, 1.3)
# After so many rounds, candidates that differ by less than `Rules.tie` are not told apart any further.
_FEWEST = 3
# Two samples that differ by less are the same time.
_SAME = 1.05


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    Attributes:
        verify: whether a candidate whose results differ from the first one's loses.
        rounds: least samples taken of those that stay to the end.
        most_rounds: most samples, where the machine is so busy that no time is seen twice.
        hopeless: times the best after which one that took so long in a single run is not timed again.
        behind: the same after some rounds, when times are known better.
        tie: times the best up to which it does not matter which candidate is taken.
        until: the `time.monotonic` after which no further round begins.
        alone: whether one that nobody competes with is measured with the same care.
    """

    verify: bool = False
    rounds: int = 7
    most_rounds: int = 28
    hopeless: float = 2.0
    behind: float = 1.15
    tie: float = 1.02
    until: float = float("inf")
    alone: bool = False


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
        if taken != LOST and taken > rules.hopeless * best:
            # it may have been unlucky
            taken = times[candidate.name] = min(taken, _attempt(track.first, problem, candidate))
        if taken != LOST and taken <= rules.hopeless * best:
            running.append(candidate)
        if watch is not None:
            watch(candidate.name, taken)
    _take_turns(track, problem, running, times, rules, watch)
    return times


def _take_turns(
    track: Track,
    problem: Problem,
    running: Sequence[Candidate],
    times: dict[str, float],
    rules: Rules,
    watch: Watcher | None,
) -> None:
    """Time candidates in rounds, until each that is still there has a time that was seen twice."""
    samples: dict[str, list[float]] = {candidate.name: [] for candidate in running}
    for turn in range(rules.most_rounds):
        for candidate in running:
            taken = _attempt(track.sample, problem, candidate)
            samples[candidate.name].append(taken)
            lost = LOST in samples[candidate.name]
            times[candidate.name] = LOST if lost else min(samples[candidate.name])
            if watch is not None:
                watch(candidate.name, times[candidate.name])
        best = min((times[candidate.name] for candidate in running), default=LOST)
        # at first, times are too rough to tell who is behind
        limit = best * max(rules.behind, _ROUGH[turn] if turn < len(_ROUGH) else 0.0)
        running = [c for c in running if times[c.name] <= limit and times[c.name] != LOST]
        alike = turn + 1 >= _FEWEST and all(times[c.name] <= rules.tie * best for c in running)
        known = alike or turn + 1 >= rules.rounds
        enough = known and all(_seen_twice(samples[c.name]) for c in running)
        decided = len(running) < 2 and turn and not rules.alone
        if enough or decided or time.monotonic() > rules.until:
            return


def _seen_twice(samples: Sequence[float]) -> bool:
    least = sorted(samples)[:2]
    return len(least) == 2 and least[1] <= _SAME * least[0]


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
