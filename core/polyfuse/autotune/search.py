"""One run_trials: candidates take turns, those that lag behind leave, the least time of each counts.

What else the machine does can only add to a time, and turns spread it over all, so the least of a few
samples is what a candidate can do.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.autotune.candidate import (
    BuiltProgram,
    CandidateBuilder,
    CandidateProgram,
    KernelRequest,
    Problem,
)
from polyfuse.autotune.worker import Fault, TrialRunner
from polyfuse.base.log import get_logger
from polyfuse.base.text import shorten
from polyfuse.cache.timings import FAILED, Measured

__all__ = ["TuningTask", "Search", "TrialRules", "Observer", "run_trials", "report_fault"]

_log = get_logger("autotune")

Observer = Callable[[str, float], None]

# How far behind the best one may be after the first rounds.
_ROUGH = (3.0, 1.6, 1.3)
# After so many rounds, candidates that differ by less than `TrialRules.tie` are not told apart any further.
_FEWEST = 3
# Two samples that differ by less are the same time.
_SAME = 1.05


@dataclass(frozen=True)
class TrialRules:
    """How a run_trials is run.

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


def run_trials(
    runner: TrialRunner,
    problem: Problem,
    candidates: Sequence[BuiltProgram],
    rules: TrialRules,
    watch: Observer | None = None,
    best: float = FAILED,
) -> Mapping[str, float]:
    """Milliseconds of each candidate by name, `FAILED` where it failed, with a line in the log for each such.

    Args:
        watch: is told of each candidate's time when it is known, and when it is known better.
        best: milliseconds of the best so far, in an earlier run_trials of this problem.
    """
    times: dict[str, float] = {}
    try:
        runner.prepare(problem)
    except Fault as fault:
        _log.warning("%s cannot be timed: %s", problem.about, fault)
        return dict.fromkeys((c.name for c in candidates), FAILED)
    running: list[BuiltProgram] = []
    reference: BuiltProgram | None = None
    for candidate in candidates:
        taken = _attempt(runner.first, problem, candidate)
        if rules.verify and taken != FAILED:
            reference = reference or candidate
            if reference is not candidate and not _is_verified(runner, problem, candidate, reference):
                taken = FAILED
        times[candidate.name] = taken
        best = min(best, taken)
        if taken != FAILED and taken > rules.hopeless * best:
            # it may have been unlucky
            taken = times[candidate.name] = min(taken, _attempt(runner.first, problem, candidate))
        if taken != FAILED and taken <= rules.hopeless * best:
            running.append(candidate)
        if watch is not None:
            watch(candidate.name, taken)
    _sample_in_rounds(runner, problem, running, times, rules, watch)
    return times


def _sample_in_rounds(
    runner: TrialRunner,
    problem: Problem,
    running: Sequence[BuiltProgram],
    times: dict[str, float],
    rules: TrialRules,
    watch: Observer | None,
) -> None:
    """Time candidates in rounds, until each that is still there has a time that was seen twice."""
    samples: dict[str, list[float]] = {candidate.name: [] for candidate in running}
    for turn in range(rules.most_rounds):
        for candidate in running:
            taken = _attempt(runner.sample, problem, candidate)
            samples[candidate.name].append(taken)
            lost = FAILED in samples[candidate.name]
            times[candidate.name] = FAILED if lost else min(samples[candidate.name])
            if watch is not None:
                watch(candidate.name, times[candidate.name])
        best = min((times[candidate.name] for candidate in running), default=FAILED)
        # at first, times are too rough to report_fault who is behind
        limit = best * max(rules.behind, _ROUGH[turn] if turn < len(_ROUGH) else 0.0)
        running = [c for c in running if times[c.name] <= limit and times[c.name] != FAILED]
        alike = turn + 1 >= _FEWEST and all(times[c.name] <= rules.tie * best for c in running)
        known = alike or turn + 1 >= rules.rounds
        enough = known and all(_seen_twice(samples[c.name]) for c in running)
        decided = len(running) < 2 and turn and not rules.alone
        if enough or decided or time.monotonic() > rules.until:
            return


def _seen_twice(samples: Sequence[float]) -> bool:
    least = sorted(samples)[:2]
    return len(least) == 2 and least[1] <= _SAME * least[0]


def _attempt(action: Callable[[BuiltProgram], float], problem: Problem, candidate: BuiltProgram) -> float:
    try:
        return action(candidate)
    except Fault as fault:
        report_fault(problem, candidate.name, str(fault))
        return FAILED


def _is_verified(
    runner: TrialRunner, problem: Problem, candidate: BuiltProgram, reference: BuiltProgram
) -> bool:
    try:
        distance = runner.check(candidate, reference)
    except Fault as fault:
        report_fault(problem, candidate.name, str(fault))
        return False
    if distance > 1:
        reason = f"its result is not that of {reference.name} ({distance:.3g} x the tolerance)"
        report_fault(problem, candidate.name, reason)
        return False
    return True


def report_fault(problem: Problem, name: str, reason: str) -> None:
    """Say why a candidate lost."""
    _log.warning("%s is out of the race for %s: %s", name, problem.about, shorten(reason, 200))


# What is faster by less than this is not worth a further round, nor better than the baseline.
_GAIN = 0.98
# Around another backend's fastest entry, too, if it is no slower than the leader by more than this.
_RIVAL = 1.1
# Around a generated entry slower than the leader by more than this, there is nothing to find.
_NEAR = 1.3


class TuningTask(ABC):
    """A question that a run_trials answers.

    Attributes:
        key: under which the answer is remembered.
        problem: the operands.
        baseline: the entry that wins unless another is faster by more than the noise; empty: none.
        uses: how often the program does it.
        pruned: how many configurations were not built, because earlier races taught that they would not win.
    """

    key: str
    problem: Problem
    baseline: str = ""
    uses: int = 1
    pruned: int = 0

    @abstractmethod
    def opening(self) -> Sequence[CandidateProgram]:
        """The entries of the first round, the safest first."""

    def default(self) -> Sequence[CandidateProgram]:
        """The entry that is used where nobody searches for a better one."""
        return ()

    @abstractmethod
    def around(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        """Entries that lie around the best so far."""

    def won(self, best: CandidateProgram, times: Mapping[str, float]) -> None:  # noqa: B027 - nothing by default
        """Hear who won, and the milliseconds of all."""


class Search:
    """A task under way.

    Attributes:
        entries: who takes part, by name.
        times: milliseconds of everyone timed, also of earlier searches that were cut short.
        seconds: how long it was timed.
    """

    def __init__(self, task: TuningTask, known: Measured) -> None:
        self.task = task
        self.entries: dict[str, CandidateProgram] = {}
        self.times: dict[str, float] = dict(known.milliseconds)
        self.seconds = 0.0
        self._works: dict[tuple[object, ...], str] = {}
        self._fresh: list[CandidateProgram] = []
        self._before: CandidateProgram | None = None

    def enter(self, entries: Sequence[CandidateProgram]) -> bool:
        """Let these take part in the next round; returns whether any is new."""
        new: dict[str, CandidateProgram] = {}
        for entry in entries:
            if entry.name not in self.entries and not self._is_known(entry):
                new[entry.name] = entry
        self.entries |= new
        self._fresh = [entry for entry in new.values() if entry.name not in self.times]
        return bool(new)

    def pending(self) -> list[CandidateProgram]:
        """Who is timed in the next round: the new ones, beside the best so far."""
        leader = self._leader() if self._fresh else None
        return [leader, *self._fresh] if leader is not None else list(self._fresh)

    def time(
        self, runner: TrialRunner, builder: CandidateBuilder, rules: TrialRules, watch: Observer | None = None
    ) -> None:
        """Run the round."""
        begun = time.monotonic()
        candidates: list[BuiltProgram] = []
        for entry in filter(builder.is_built, self.pending()):
            try:
                candidates.append(builder.candidate(entry))
            except Fault as fault:
                self.times[entry.name] = FAILED
                report_fault(self.task.problem, entry.name, str(fault))
        fresh = {entry.name for entry in self._fresh}
        if any(candidate.name in fresh for candidate in candidates):
            self.times |= run_trials(runner, self.task.problem, candidates, rules, watch)
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
        return self.enter([near for entry in (best, *self._rivals(best)) for near in self.task.around(entry)])

    def measured(self, final: bool = False) -> Measured:
        """What is known; at the end, with the winner."""
        best = self._leader() if final else None
        if best is not None and self.task.baseline in self.entries:
            held = self.times.get(self.task.baseline, FAILED)
            if self.times[best.name] > _GAIN * held:
                best = self.entries[self.task.baseline]
        return Measured(dict(self.times), best.name if best is not None else None, self.task.problem.about)

    def _is_known(self, entry: CandidateProgram) -> bool:
        """Whether another name stands for the same work: configurations that give equal code."""
        work = tuple(
            (step.backend.name, step.source.key, step.operands) if isinstance(step, KernelRequest) else step
            for step in entry.steps
        )
        if not work or self._works.setdefault(work, entry.name) == entry.name:
            return False
        _log.info("%s is the same as %s", entry.name, self._works[work])
        return True

    def _rivals(self, best: CandidateProgram) -> list[CandidateProgram]:
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

    def _leader(self) -> CandidateProgram | None:
        return self._least(list(self.entries.values()))

    def _generated(self) -> CandidateProgram | None:
        return self._least([entry for entry in self.entries.values() if entry.backend is not None])

    def _least(self, entries: Sequence[CandidateProgram]) -> CandidateProgram | None:
        timed = [entry for entry in entries if self.times.get(entry.name, FAILED) != FAILED]
        return min(timed, key=lambda entry: self.times[entry.name], default=None)
