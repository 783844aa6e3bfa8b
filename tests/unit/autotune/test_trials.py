"""How candidates race: turns, early leavers, faults, verification, and the search around the best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from polyfuse.autotune import search as search_module
from polyfuse.autotune.candidate import BuiltProgram, CandidateProgram, KernelRequest, Problem
from polyfuse.autotune.search import Search, TrialRules, TuningTask, run_trials
from polyfuse.autotune.worker import Fault
from polyfuse.cache.timings import FAILED, Measured
from polyfuse.plugin import Config, Source

PROBLEM = Problem("a product", "cpu", "any", ())


class FakeTrack:
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
    runner = FakeTrack()
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


def test_those_as_fast_as_each_other_are_not_told_apart_further():
    runner = FakeTrack()
    run_trials(runner, PROBLEM, candidates("1.0", "1.01", "1.5"), TrialRules(rounds=9))
    assert [runner.samples(n) for n in ("1.0", "1.01", "1.5")] == [3, 3, 3]
    run_trials(runner := FakeTrack(), PROBLEM, candidates("1.0", "1.1"), TrialRules(rounds=9))
    assert runner.samples("1.1") == 9


def test_on_a_busy_machine_there_are_more_rounds():
    noise = itertools.cycle([9.0, 5.0, 7.0, 3.0, 4.0, 2.0, 1.0, 1.01])

    class Busy(FakeTrack):
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

        class Busy(FakeTrack):
            def sample(self, candidate: BuiltProgram) -> float:
                return super().sample(candidate) * next(noise)  # noqa: B023 - used within the turn

        runner = Busy()
        run_trials(runner, PROBLEM, candidates("1.0"), TrialRules(alone=alone))
        assert runner.samples("1.0") == count


def test_what_fails_has_lost_with_one_line(caplog):
    runner = FakeTrack()
    times = run_trials(runner, PROBLEM, candidates("bad1", "later2", "1.0"), TrialRules())
    assert times == {"bad1": FAILED, "later2": FAILED, "1.0": 1.0}
    lines = [r.getMessage() for r in caplog.records if r.name == "polyfuse.autotune"]
    assert len(lines) == 2 and all("is out of the race for a product: it died" in line for line in lines)


def test_wrong_results_lose_where_they_are_looked_at():
    found, verified = candidates("1.0", "0.5", "0.9"), TrialRules(verify=True)
    assert run_trials(FakeTrack(["0.5"]), PROBLEM, found, verified)["0.5"] == FAILED
    assert run_trials(FakeTrack(["0.5"]), PROBLEM, found, TrialRules())["0.5"] == 0.5


def test_the_reference_is_the_first_that_works():
    times = run_trials(FakeTrack(["1.0"]), PROBLEM, candidates("bad", "1.0", "2.0"), TrialRules(verify=True))
    assert times["1.0"] == 1.0


def test_without_operands_nothing_is_timed():
    assert run_trials(FakeTrack(broken=True), PROBLEM, candidates("1.0", "2.0"), TrialRules()) == {
        "1.0": FAILED,
        "2.0": FAILED,
    }


def test_time_may_be_up_after_a_round():
    runner = FakeTrack()
    run_trials(runner, PROBLEM, candidates("1.0", "1.1"), TrialRules(until=0.0))
    assert runner.samples("1.1") == 1


class Line(TuningTask):
    """Configurations along a line, fastest at some place; beside them a library."""

    key, problem, baseline = "key", PROBLEM, "library"
    backend: Any = object()

    def entry(self, place: int) -> CandidateProgram:
        return CandidateProgram(f"at={place}", (), self.backend, Config.of(at=place))

    def opening(self) -> Sequence[CandidateProgram]:
        return [CandidateProgram("library", ()), self.entry(8), self.entry(4)]

    def around(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        at = best.config.get("at") if best.config is not None else 0
        return [self.entry(at // 2), self.entry(at * 2)]


class Pair(TuningTask):
    """Two backends that each have a default and others around it; some give the same code."""

    key, problem = "pair", PROBLEM

    def __init__(self) -> None:
        self.backends = {name: SimpleNamespace(name=name) for name in ("one", "two")}

    def entry(self, name: str, text: str, code: str) -> CandidateProgram:
        backend: Any = self.backends[name]
        step = KernelRequest(backend, Source("kernel", code, "text"), ())
        return CandidateProgram(f"{name} {text}".strip(), (step,), backend, Config())

    def opening(self) -> Sequence[CandidateProgram]:
        return [self.entry(name, "", f"{name} default") for name in self.backends]

    def around(self, best: CandidateProgram) -> Sequence[CandidateProgram]:
        assert best.backend is not None
        name = best.backend.name
        return [self.entry(name, "wide", f"{name} wide"), self.entry(name, "same", f"{name} default")]


def test_equal_code_is_timed_once_and_close_rivals_are_searched_too(monkeypatch):
    times = {"one": 1.0, "two": 1.05, "one wide": 0.99, "two wide": 0.9}

    def fake(runner: Any, problem: Any, found: Sequence[BuiltProgram], *_: Any) -> dict[str, float]:
        return {c.name: times[c.name] for c in found}

    monkeypatch.setattr(search_module, "run_trials", fake)
    for rival, best in ((1.05, "two wide"), (1.5, "one")):
        times["two"] = rival
        search = Search(Pair(), Measured())
        search.enter(search.task.opening())
        search.time(None, Shop(), TrialRules())  # type: ignore[arg-type]
        while search.goes_on():
            search.time(None, Shop(), TrialRules())  # type: ignore[arg-type]
        names = ["one", "two", "one wide", "two wide"] if rival < 1.1 else ["one", "two", "one wide"]
        assert sorted(search.entries) == sorted(names)
        assert search.measured(final=True).best == ("one wide" if best == "one" else best)


class Shop:
    def is_built(self, entry: CandidateProgram) -> bool:
        return True

    def candidate(self, entry: CandidateProgram) -> BuiltProgram:
        if entry.name == "at=64":
            raise Fault("it cannot be built")
        return BuiltProgram(entry.name, ())


def searched(
    monkeypatch: pytest.MonkeyPatch, library: float, known: Measured | None = None
) -> tuple[Search, list[list[str]]]:
    rounds: list[list[str]] = []

    def fake(runner: Any, problem: Any, found: Sequence[BuiltProgram], *_: Any) -> dict[str, float]:
        rounds.append([c.name for c in found])
        return {c.name: library if c.name == "library" else 100 / int(c.name[3:]) for c in found}

    monkeypatch.setattr(search_module, "run_trials", fake)
    search = Search(Line(), known or Measured())
    search.enter(search.task.opening())
    while True:
        search.time(None, Shop(), TrialRules())  # type: ignore[arg-type]
        if not search.goes_on():
            return search, rounds


def test_the_search_goes_on_around_the_best(monkeypatch):
    search, rounds = searched(monkeypatch, library=10.0)
    assert rounds == [["library", "at=8", "at=4"], ["library", "at=16"], ["at=16", "at=32"]]
    assert search.measured(final=True).best == "at=32"
    assert search.measured().best is None
    assert search.times["at=64"] == FAILED


def test_far_behind_the_library_there_is_nothing_to_search(monkeypatch):
    search, rounds = searched(monkeypatch, library=1.0)
    assert rounds == [["library", "at=8", "at=4"]]
    assert search.measured(final=True).best == "library"


def test_the_library_wins_a_draw(monkeypatch):
    search, _ = searched(monkeypatch, library=100 / 32 * 1.01)
    assert search.measured(final=True).best == "library"


def test_what_is_known_is_not_timed_again(monkeypatch):
    known = Measured({"library": 10.0, "at=8": 12.5, "at=4": 25.0, "at=16": 6.25})
    _, rounds = searched(monkeypatch, 10.0, known)
    assert rounds == [["at=16", "at=32"]]
