"""How candidates are timed: turns, early leavers, faults, verification, and the search around the best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from autotuning import best_of, candidate, record
from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram, CandidateProgram, Fault, KernelRequest, Problem
from polyfuse.autotune.search import Search, TrialRules, TuningTask, run_trials
from polyfuse.base.errors import WrongCandidateError
from polyfuse.cache.timings import FAILED, Candidate, Record
from polyfuse.plugin import Config, Source

PROBLEM = Problem("a matmul", "cpu", "any", ())


class FakeRunner:
    """Candidates take as long as their name says, in hundreds of milliseconds; some misbehave."""

    def __init__(self, wrong: Sequence[str] = (), broken: bool = False) -> None:
        self.asked: list[tuple[str, str]] = []
        self.wrong = wrong
        self.broken = broken

    def prepare(self, problem: Problem) -> None:
        if self.broken:
            raise Fault("no memory")

    def first(self, candidate: BuiltProgram) -> float:
        return self._time("first", candidate) * 1.5

    def sample(self, candidate: BuiltProgram) -> float:
        return self._time("sample", candidate)

    def check(self, candidate: BuiltProgram, reference: BuiltProgram) -> float:
        return 5.0 if candidate.name in self.wrong else 0.5

    def close(self) -> None:
        pass

    def _time(self, what: str, candidate: BuiltProgram) -> float:
        self.asked.append((what, candidate.name))
        if candidate.name.startswith("bad") or (what == "sample" and candidate.name.startswith("later")):
            raise Fault("it died")
        return float(candidate.name.strip("aeltr"))

    def samples(self, name: str) -> int:
        return self.asked.count(("sample", name))


def candidates(*names: str) -> list[BuiltProgram]:
    return [BuiltProgram(name, ()) for name in names]


def test_turns_and_early_leavers():
    runner = FakeRunner()
    seen: list[str] = []
    rules = TrialRules(rounds=4)
    found = candidates("1.0", "1.1", "1.9", "3.0")
    times = run_trials(runner, PROBLEM, found, rules, lambda n, ms: seen.append(n))
    assert times == {"1.0": 1.0, "1.1": 1.1, "1.9": 1.9, "3.0": 4.5}
    assert [runner.samples(n) for n in ("1.0", "1.1", "1.9", "3.0")] == [4, 4, 2, 0]
    # what seems hopeless gets a second chance
    assert runner.asked.count(("first", "3.0")) == 2
    order = [name for what, name in runner.asked if what == "sample"]
    assert order[:5] == ["1.0", "1.1", "1.9", "1.0", "1.1"]
    assert set(seen) == {"1.0", "1.1", "1.9", "3.0"}


def test_those_as_fast_as_each_other_are_not_timed_further():
    runner = FakeRunner()
    run_trials(runner, PROBLEM, candidates("1.0", "1.01", "1.5"), TrialRules(rounds=9))
    assert [runner.samples(n) for n in ("1.0", "1.01", "1.5")] == [3, 3, 3]
    run_trials(runner := FakeRunner(), PROBLEM, candidates("1.0", "1.1"), TrialRules(rounds=9))
    assert runner.samples("1.1") == 9


def test_on_a_busy_machine_there_are_more_rounds():
    noise = itertools.cycle([9.0, 5.0, 7.0, 3.0, 4.0, 2.0, 1.0, 1.01])

    class Busy(FakeRunner):
        def sample(self, candidate: BuiltProgram) -> float:
            return super().sample(candidate) * (next(noise) if candidate.name == "1.0" else 1.0)

    runner = Busy()
    times = run_trials(runner, PROBLEM, candidates("1.0", "1.2"), TrialRules(rounds=3, behind=99.0))
    assert times == {"1.0": 1.0, "1.2": 1.2}
    assert runner.samples("1.0") == 8
    runner = Busy()
    run_trials(runner, PROBLEM, candidates("1.0", "1.2"), TrialRules(rounds=3, most_rounds=5, behind=99.0))
    assert runner.samples("1.0") == 5


def test_alone_it_may_be_measured_with_the_same_care():
    for alone, count in ((False, 2), (True, 6)):
        noise = iter([9.0, 5.0, 7.0, 3.0, 1.0, 1.01, 1.0])

        class Busy(FakeRunner):
            def sample(self, candidate: BuiltProgram) -> float:
                return super().sample(candidate) * next(noise)  # noqa: B023 - used within the turn

        runner = Busy()
        run_trials(runner, PROBLEM, candidates("1.0"), TrialRules(alone=alone))
        assert runner.samples("1.0") == count


def test_what_fails_is_one_line_in_the_log(caplog):
    runner = FakeRunner()
    times = run_trials(runner, PROBLEM, candidates("bad1", "later2", "1.0"), TrialRules())
    assert times == {"bad1": "it died", "later2": "it died", "1.0": 1.0}
    lines = [r.getMessage() for r in caplog.records if r.name == "polyfuse.autotune"]
    assert len(lines) == 2 and all("is no candidate for a matmul: it died" in line for line in lines)


def test_wrong_results_fail_where_they_are_looked_at():
    found, verified = candidates("1.0", "0.5", "0.9"), TrialRules(verify=True)
    assert "5 x the tolerance" in str(run_trials(FakeRunner(["0.5"]), PROBLEM, found, verified)["0.5"])
    assert run_trials(FakeRunner(["0.5"]), PROBLEM, found, TrialRules())["0.5"] == 0.5


def test_wrong_results_are_an_error_on_request():
    found, raising = candidates("1.0", "0.5", "0.9"), TrialRules(verify=True, raises=True)
    with pytest.raises(
        WrongCandidateError, match=r"0\.5 is no candidate for a matmul.*5 x the tol"
    ) as caught:
        run_trials(FakeRunner(["0.5"]), PROBLEM, found, raising)
    assert caught.value.candidate == "0.5"
    # one that does not run loses, as always
    assert run_trials(FakeRunner(), PROBLEM, candidates("1.0", "bad"), raising)["bad"] == "it died"


def test_the_reference_is_the_first_that_works():
    times = run_trials(FakeRunner(["1.0"]), PROBLEM, candidates("bad", "1.0", "2.0"), TrialRules(verify=True))
    assert times["1.0"] == 1.0


def test_without_operands_nothing_is_timed():
    found = run_trials(FakeRunner(broken=True), PROBLEM, candidates("1.0", "2.0"), TrialRules())
    assert found == {"1.0": "no memory", "2.0": "no memory"}


def test_time_may_be_up_after_a_round():
    runner = FakeRunner()
    run_trials(runner, PROBLEM, candidates("1.0", "1.1"), TrialRules(until=0.0))
    assert runner.samples("1.1") == 1


class Line(TuningTask):
    """Configurations along a line, fastest at some point; beside them a library."""

    key, problem, baseline = "key", PROBLEM, "library"
    backend: Any = object()

    def entry(self, point: int) -> CandidateProgram:
        return CandidateProgram(Candidate("own", Config.of(at=point)), (), self.backend)

    def candidates(self) -> Sequence[CandidateProgram]:
        return [CandidateProgram(Candidate("library"), ()), self.entry(8), self.entry(4)]

    def neighbours(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        at = best.config.get("at") if best.config is not None else 0
        return [self.entry(at // 2), self.entry(at * 2)]


class Pair(TuningTask):
    """Two backends that each have a default and others around it; some give the same code."""

    key, problem = "pair", PROBLEM

    def __init__(self) -> None:
        self.backends = {name: SimpleNamespace(name=name) for name in ("one", "two")}

    def entry(self, name: str, number: int, code: str) -> CandidateProgram:
        backend: Any = self.backends[name]
        step = KernelRequest(backend, Source("kernel", code, "text"), ())
        config = Config.of(n=number) if number else None
        return CandidateProgram(Candidate(name, config), (step,), backend)

    def candidates(self) -> Sequence[CandidateProgram]:
        return [self.entry(name, 0, f"{name} default") for name in self.backends]

    def neighbours(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        assert best.backend is not None
        name = best.backend.name
        return [self.entry(name, 1, f"{name} wide"), self.entry(name, 2, f"{name} default")]


def test_equal_code_is_timed_once_and_close_rivals_are_searched_too(monkeypatch):
    times = {"one": 1.0, "two": 1.05, "one n=1": 0.99, "two n=1": 0.9}

    def fake(runner: Any, problem: Any, found: Sequence[BuiltProgram], *_: Any) -> dict[str, float]:
        return {c.name: times[c.name] for c in found}

    monkeypatch.setattr(search_module, "run_trials", fake)
    for rival, best in ((1.05, "two n=1"), (1.5, "one n=1")):
        times["two"] = rival
        search = Search(Pair(), Record())
        search.add(search.task.candidates())
        search.time(None, Builder(), TrialRules())  # type: ignore[arg-type]
        while search.widen():
            search.time(None, Builder(), TrialRules())  # type: ignore[arg-type]
        names = ["one", "two", "one n=1", "two n=1"] if rival < 1.1 else ["one", "two", "one n=1"]
        assert sorted(map(str, search.programs)) == sorted(names)
        assert best_of(search.record(complete=True)) == best


class Builder:
    def is_built(self, program: CandidateProgram) -> bool:
        return True

    def built(self, program: CandidateProgram) -> BuiltProgram:
        if program.name == "own at=64":
            raise Fault("it cannot be built")
        return BuiltProgram(program.name, ())


def searched(
    monkeypatch: pytest.MonkeyPatch, library: float, known: Record | None = None
) -> tuple[Search, list[list[str]]]:
    rounds: list[list[str]] = []

    def fake(runner: Any, problem: Any, found: Sequence[BuiltProgram], *_: Any) -> dict[str, float]:
        rounds.append([c.name for c in found])
        return {c.name: library if c.name == "library" else 100 / int(c.name[7:]) for c in found}

    monkeypatch.setattr(search_module, "run_trials", fake)
    search = Search(Line(), known or Record())
    search.add(search.task.candidates())
    while True:
        search.time(None, Builder(), TrialRules())  # type: ignore[arg-type]
        if not search.widen():
            return search, rounds


def test_the_search_goes_on_around_the_best(monkeypatch):
    search, rounds = searched(monkeypatch, library=11.0)
    assert rounds == [
        ["library", "own at=8", "own at=4"],
        ["library", "own at=16"],
        ["own at=16", "own at=32"],
    ]
    assert best_of(search.record(complete=True)) == "own at=32"
    assert search.record().best is None
    failed = search.record().of(candidate("own at=64"))
    assert failed is not None and failed.milliseconds == FAILED and failed.fault == "it cannot be built"


def test_far_behind_the_library_there_is_nothing_to_search(monkeypatch):
    search, rounds = searched(monkeypatch, library=1.0)
    assert rounds == [["library", "own at=8", "own at=4"]]
    assert best_of(search.record(complete=True)) == "library"


def test_the_library_is_used_where_times_are_equal(monkeypatch):
    search, _ = searched(monkeypatch, library=100 / 32 * 1.01)
    assert best_of(search.record(complete=True)) == "library"


def test_what_is_known_is_not_timed_again(monkeypatch):
    known = record({"library": 11.0, "own at=8": 12.5, "own at=4": 25.0, "own at=16": 6.25}, complete=False)
    _, rounds = searched(monkeypatch, 11.0, known)
    assert rounds == [["own at=16", "own at=32"]]
