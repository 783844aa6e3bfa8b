"""The search for the fastest candidate of one task: trials of a first round, then rounds of what differs from
the best in one decision, until none is faster.

In a round, candidates are sampled in turn, and the least time of each counts: what else the machine does can
only add to a time, and turns spread it over all.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polyfuse.autotune.candidate import (
    BuiltProgram,
    CandidateBuilder,
    CandidateProgram,
    Fault,
    KernelRequest,
    Problem,
)
from polyfuse.autotune.worker import TrialRunner
from polyfuse.base.errors import WrongCandidateError
from polyfuse.base.log import get_logger
from polyfuse.base.text import shorten
from polyfuse.cache.timings import FAILED, Candidate, Record, Trial

_log = get_logger("autotune")

Observer = Callable[[str, float], None]

# How far behind the best one may be after the first rounds.
_ROUGH = (3.0, 1.6, 1.3)
# After so many rounds, candidates within `TrialRules.tie` of each other are not distinguished further.
_FEWEST = 3
# Two samples that differ by less are the same time.
_SAME = 1.05
# What is faster by less than this is not worth a further round.
_GAIN = 0.98
# The search also goes around another backend's fastest candidate, if it is at most this much slower.
_RIVAL = 1.1
# Around a generated candidate slower than the fastest by more than this, there is nothing to find.
_NEAR = 1.15


@dataclass(frozen=True)
class TrialRules:
    """How candidates are timed.

    Attributes:
        verify: whether a candidate whose results differ from the first one's fails.
        raises: whether that is an error.
        rounds: least samples taken of those that stay to the end.
        most_rounds: most samples, where the machine is so busy that no time is seen twice.
        hopeless: times the best after which one that took so long in a single run is not timed again.
        behind: the same after some rounds, when times are known better.
        tie: times the best up to which it does not matter which candidate is taken.
        until: the `time.monotonic` after which no further round begins.
        alone: whether a single candidate is measured with the same care.
    """

    verify: bool = False
    raises: bool = False
    rounds: int = 7
    most_rounds: int = 28
    hopeless: float = 2.0
    behind: float = 1.15
    tie: float = 1.02
    until: float = float("inf")
    alone: bool = False


@dataclass(frozen=True)
class TrialBatch:
    """The candidates of one problem in a round, as plain data that another machine understands."""

    problem: Problem
    programs: tuple[BuiltProgram, ...]
    rules: TrialRules


class RoundHelpers(Protocol):
    """Other machines that time a part of a round."""

    def share(
        self, batches: Sequence[TrialBatch], patience: float
    ) -> Mapping[int, Callable[[], Mapping[str, float | str] | None]]:
        """For the numbers of batches that were sent away, a function that waits for the outcome of each
        program, as `run_trials` says it; None: this process must time them. One batch takes `patience`
        seconds at most.
        """


class TuningTask(ABC):
    """A problem with several candidates, of which timing finds the fastest.

    Attributes:
        key: the address of what is measured of it.
        problem: the operands.
        baseline: the implementation that is used unless another is faster by more than the noise; empty:
            none.
        uses: how often the program does it.
        pruned: how many configurations were not built, because the cost model expects others to be faster.
        default: what is used where nobody searches for a better one; None: it cannot be said before.
    """

    key: str
    problem: Problem
    baseline: str = ""
    uses: int = 1
    pruned: int = 0
    default: Candidate | None = None

    @abstractmethod
    def candidates(self) -> Sequence[CandidateProgram]:
        """Those of the first round, the safest first."""

    def program(self, candidate: Candidate) -> CandidateProgram | None:
        """What one candidate runs; None where it cannot be generated."""
        return None

    def neighbours(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        """Those that differ from the best so far in one decision."""
        return ()


class Search:
    """The search for one task's fastest candidate, under way.

    Attributes:
        programs: all candidates so far.
        trials: of all that were timed, also in earlier searches that were cut short.
        seconds: how long they were timed.
    """

    def __init__(self, task: TuningTask, known: Record) -> None:
        self.task = task
        self.programs: dict[Candidate, CandidateProgram] = {}
        self.trials: dict[Candidate, Trial] = {trial.candidate: trial for trial in known.trials}
        self.seconds = 0.0
        self._generated: dict[tuple[object, ...], Candidate] = {}
        self._fresh: list[CandidateProgram] = []
        self._before: CandidateProgram | None = None

    def add(self, programs: Sequence[CandidateProgram]) -> bool:
        """Take these into the next round; returns whether any is new."""
        new: dict[Candidate, CandidateProgram] = {}
        for program in programs:
            if program.candidate not in self.programs and not self._is_known(program):
                new[program.candidate] = program
        self.programs |= new
        self._fresh = [program for program in new.values() if program.candidate not in self.trials]
        return bool(new)

    def pending(self) -> list[CandidateProgram]:
        """What is timed in the next round: the new ones, beside the best so far."""
        best = self._fastest(self.programs.values()) if self._fresh else None
        return [best, *self._fresh] if best is not None else list(self._fresh)

    def time(
        self,
        runner: TrialRunner,
        builder: CandidateBuilder,
        rules: TrialRules,
        observe: Observer | None = None,
    ) -> None:
        """Run the round."""
        begun = time.monotonic()
        ready = self.ready(builder)
        if ready:
            self.note(run_trials(runner, self.task.problem, ready, rules, observe))
        self.seconds += time.monotonic() - begun

    def ready(self, builder: CandidateBuilder) -> list[BuiltProgram]:
        """What the round times, built; empty where nothing of it is new."""
        built: list[BuiltProgram] = []
        fresh = {program.candidate for program in self._fresh}
        any_fresh = False
        for program in filter(builder.is_built, self.pending()):
            try:
                built.append(builder.built(program))
                any_fresh |= program.candidate in fresh
            except Fault as fault:
                self._note(program.candidate, _fault(self.task.problem, program.name, str(fault)))
        return built if any_fresh else []

    def note(self, outcomes: Mapping[str, float | str]) -> None:
        """Record the outcomes of `run_trials` for the candidates that were ready."""
        candidates = {program.name: program.candidate for program in self.pending()}
        for name, outcome in outcomes.items():
            self._note(candidates[name], outcome)

    def widen(self) -> bool:
        """Add the neighbours of the best generated candidate, if the search has not come to its end."""
        best = self._fastest(p for p in self.programs.values() if p.backend is not None)
        fastest = self._fastest(self.programs.values())
        if best is None or fastest is None or self._time(best) > _NEAR * self._time(fastest):
            return False
        if self._before is not None and self._time(best) > _GAIN * self._time(self._before):
            return False
        self._before = best
        return self.add(
            [near for program in (best, *self._rivals(best)) for near in self.task.neighbours(program)]
        )

    def record(self, complete: bool = False) -> Record:
        """What is known."""
        return Record(self.task.problem.about, tuple(self.trials.values()), self.task.baseline, complete)

    def _note(self, candidate: Candidate, outcome: float | str) -> None:
        trial = Trial(candidate, fault=outcome) if isinstance(outcome, str) else Trial(candidate, outcome)
        self.trials[candidate] = trial

    def _time(self, program: CandidateProgram) -> float:
        trial = self.trials.get(program.candidate)
        return FAILED if trial is None else trial.milliseconds

    def _is_known(self, program: CandidateProgram) -> bool:
        """Whether another candidate does the same: configurations that give equal code."""
        work = tuple(
            (step.backend.name, step.source.key, step.operands) if isinstance(step, KernelRequest) else step
            for step in program.steps
        )
        if not work or self._generated.setdefault(work, program.candidate) == program.candidate:
            return False
        _log.info("%s is the same as %s", program.name, self._generated[work])
        return True

    def _rivals(self, best: CandidateProgram) -> list[CandidateProgram]:
        """The fastest candidate of each other backend that is close to the best."""
        limit = _RIVAL * self._time(best)
        others: dict[str, list[CandidateProgram]] = {}
        for program in self.programs.values():
            if program.backend not in (None, best.backend):
                others.setdefault(program.backend.name, []).append(program)
        fastest = [self._fastest(others[name]) for name in sorted(others)]
        return [program for program in fastest if program is not None and self._time(program) <= limit]

    def _fastest(self, programs: Iterable[CandidateProgram]) -> CandidateProgram | None:
        ran = (program for program in programs if self._time(program) != FAILED)
        return min(ran, key=self._time, default=None)


def run_trials(
    runner: TrialRunner,
    problem: Problem,
    programs: Sequence[BuiltProgram],
    rules: TrialRules,
    observe: Observer | None = None,
) -> Mapping[str, float | str]:
    """Milliseconds of each program by name, or what was wrong with it, which is a line in the log too.

    Args:
        observe: called with each program's time when it is first measured, and when it is measured better.
    """
    try:
        runner.prepare(problem)
    except Fault as fault:
        _log.warning("%s cannot be timed: %s", problem.about, fault)
        return dict.fromkeys((program.name for program in programs), str(fault))
    times: dict[str, float] = {}
    faults: dict[str, str] = {}
    running: list[BuiltProgram] = []
    reference: BuiltProgram | None = None
    best = FAILED
    for program in programs:
        taken = _attempt(runner.first, problem, program, faults)
        if rules.verify and taken != FAILED:
            reference = reference or program
            if reference is not program and not _is_verified(
                runner, problem, program, reference, faults, rules.raises
            ):
                taken = FAILED
        best = min(best, taken)
        if taken != FAILED and taken > rules.hopeless * best:
            # it may have been unlucky
            taken = min(taken, _attempt(runner.first, problem, program, faults))
        times[program.name] = taken
        if taken != FAILED and taken <= rules.hopeless * best:
            running.append(program)
        if observe is not None:
            observe(program.name, taken)
    _sample_in_turn(runner, problem, running, times, faults, rules, observe)
    return times | faults


def _sample_in_turn(
    runner: TrialRunner,
    problem: Problem,
    running: Sequence[BuiltProgram],
    times: dict[str, float],
    faults: dict[str, str],
    rules: TrialRules,
    observe: Observer | None,
) -> None:
    """Time programs in rounds, until each that is still there has a time that was seen twice."""
    samples: dict[str, list[float]] = {program.name: [] for program in running}
    for turn in range(rules.most_rounds):
        for program in running:
            taken = _attempt(runner.sample, problem, program, faults)
            samples[program.name].append(taken)
            times[program.name] = FAILED if program.name in faults else min(samples[program.name])
            if observe is not None:
                observe(program.name, times[program.name])
        best = min((times[program.name] for program in running), default=FAILED)
        # at first, times are too rough to tell which are behind
        limit = best * max(rules.behind, _ROUGH[turn] if turn < len(_ROUGH) else 0.0)
        running = [p for p in running if times[p.name] <= limit and times[p.name] != FAILED]
        alike = turn + 1 >= _FEWEST and all(times[p.name] <= rules.tie * best for p in running)
        known = alike or turn + 1 >= rules.rounds
        enough = known and all(_seen_twice(samples[p.name]) for p in running)
        decided = len(running) < 2 and turn and not rules.alone
        if enough or decided or time.monotonic() > rules.until:
            return


def _seen_twice(samples: Sequence[float]) -> bool:
    least = sorted(samples)[:2]
    return len(least) == 2 and least[1] <= _SAME * least[0]


def _attempt(
    action: Callable[[BuiltProgram], float], problem: Problem, program: BuiltProgram, faults: dict[str, str]
) -> float:
    try:
        return action(program)
    except Fault as fault:
        faults[program.name] = _fault(problem, program.name, str(fault))
        return FAILED


def _is_verified(
    runner: TrialRunner,
    problem: Problem,
    program: BuiltProgram,
    reference: BuiltProgram,
    faults: dict[str, str],
    raises: bool,
) -> bool:
    distance = _attempt(lambda tried: runner.check(tried, reference), problem, program, faults)
    if program.name not in faults and distance > 1:
        reason = f"its result is not that of {reference.name} ({distance:.3g} x the tolerance)"
        if raises:
            raise WrongCandidateError(
                f"{program.name} is no candidate for {problem.about}: {reason}",
                "mend it, allow more with tune_tolerances, or leave it out with tune_verify='drop'",
                candidate=program.name,
            )
        faults[program.name] = _fault(problem, program.name, reason)
    return program.name not in faults


def _fault(problem: Problem, name: str, reason: str) -> str:
    """Log why a candidate is not used, and return that."""
    _log.warning("%s is no candidate for %s: %s", name, problem.about, shorten(reason, 200))
    return reason
