"""How candidates race: turns, early leavers, faults, verification, and the search around the best."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from polyfuse.cache.timings import LOST, Measured
from polyfuse.plugin import Config, Source
from polyfuse.select import heat as heat_module
from polyfuse.select.contest import Rules, race
from polyfuse.select.heat import Bout, Heat
from polyfuse.select.process import Fault
from polyfuse.select.work import Candidate, Problem
from polyfuse.select.workshop import Entry, Ordered

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

    def first(self, candidate: Candidate) -> float:
        return self._time("first", candidate) * 1.5

    def sample(self, candidate: Candidate) -> float:
        return self._time("sample", candidate)

    def check(self, candidate: Candidate, reference: Candidate) -> float:
        return 5.0 if candidate.name in self.wrong else 0.5

    def close(self) -> None:
        pass

    def _time(self, what: str, candidate: Candidate) -> float:
        self.asked.append((what, candidate.name))
        if candidate.name.startswith("bad") or (what == "sample" and candidate.name.startswith("later")):
            raise Fault("it died")
        return float(candidate.name.strip("aeltr"))

    def samples(self, name: str) -> int:
        return self.asked.count(("sample", name))


def candidates(*names: str) -> list[Candidate]:
    return [Candidate(name, ()) for name in names]


def test_turns_and_early_leavers():
    track = FakeTrack()
    seen: list[str] = []
    rules = Rules(rounds=4)
    times = race(track, PROBLEM, candidates("1.0", "1.1", "1.9", "3.0"), rules, lambda n, ms: seen.append(n))
    assert times == {"1.0": 1.0, "1.1": 1.1, "1.9": 1.9, "3.0": 4.5}
    assert [track.samples(n) for n in ("1.0", "1.1", "1.9", "3.0")] == [4, 4, 2, 0]
    # what seems hopeless gets a second chance
    assert track.asked.count(("first", "3.0")) == 2
    order = [name for what, name in track.asked if what == "sample"]
    assert order[:5] == ["1.0", "1.1", "1.9", "1.0", "1.1"]
    assert set(seen) == {"1.0", "1.1", "1.9", "3.0"}


def test_those_as_fast_as_each_other_are_not_told_apart_further():
    track = FakeTrack()
    race(track, PROBLEM, candidates("1.0", "1.01", "1.5"), Rules(rounds=9))
    assert [track.samples(n) for n in ("1.0", "1.01", "1.5")] == [3, 3, 3]
    race(track := FakeTrack(), PROBLEM, candidates("1.0", "1.1"), Rules(rounds=9))
    assert track.samples("1.1") == 9


def test_on_a_busy_machine_there_are_more_rounds():
    noise = itertools.cycle([9.0, 5.0, 7.0, 3.0, 4.0, 2.0, 1.0, 1.01])

    class Busy(FakeTrack):
        def sample(self, candidate: Candidate) -> float:
            return super().sample(candidate) * (next(noise) if candidate.name == "1.0" else 1.0)

    track = Busy()
    times = race(track, PROBLEM, candidates("1.0", "1.2"), Rules(rounds=3, behind=99.0))
    assert times == {"1.0": 1.0, "1.2": 1.2}
    assert track.samples("1.0") == 8
    track = Busy()
    race(track, PROBLEM, candidates("1.0", "1.2"), Rules(rounds=3, most_rounds=5, behind=99.0))
    assert track.samples("1.0") == 5


def test_alone_it_may_be_measured_with_the_same_care():
    for alone, count in ((False, 2), (True, 6)):
        noise = iter([9.0, 5.0, 7.0, 3.0, 1.0, 1.01, 1.0])

        class Busy(FakeTrack):
            def sample(self, candidate: Candidate) -> float:
                return super().sample(candidate) * next(noise)  # noqa: B023 - used within the turn

        track = Busy()
        race(track, PROBLEM, candidates("1.0"), Rules(alone=alone))
        assert track.samples("1.0") == count


def test_what_fails_has_lost_with_one_line(caplog):
    track = FakeTrack()
    times = race(track, PROBLEM, candidates("bad1", "later2", "1.0"), Rules())
    assert times == {"bad1": LOST, "later2": LOST, "1.0": 1.0}
    lines = [r.getMessage() for r in caplog.records if r.name == "polyfuse.select"]
    assert len(lines) == 2 and all("is out of the race for a product: it died" in line for line in lines)


def test_wrong_results_lose_where_they_are_looked_at():
    names = ("1.0", "0.5", "0.9")
    assert race(FakeTrack(["0.5"]), PROBLEM, candidates(*names), Rules(verify=True))["0.5"] == LOST
    assert race(FakeTrack(["0.5"]), PROBLEM, candidates(*names), Rules())["0.5"] == 0.5


def test_the_reference_is_the_first_that_works():
    times = race(FakeTrack(["1.0"]), PROBLEM, candidates("bad", "1.0", "2.0"), Rules(verify=True))
    assert times["1.0"] == 1.0


def test_without_operands_nothing_is_timed():
    assert race(FakeTrack(broken=True), PROBLEM, candidates("1.0", "2.0"), Rules()) == {
        "1.0": LOST,
        "2.0": LOST,
    }


def test_time_may_be_up_after_a_round():
    track = FakeTrack()
    race(track, PROBLEM, candidates("1.0", "1.1"), Rules(until=0.0))
    assert track.samples("1.1") == 1


class Line(Bout):
    """Configurations along a line, fastest at some place; beside them a library."""

    key, problem, favourite = "key", PROBLEM, "library"
    backend: Any = object()

    def entry(self, place: int) -> Entry:
        return Entry(f"at={place}", (), self.backend, Config.of(at=place))

    def opening(self) -> Sequence[Entry]:
        return [Entry("library", ()), self.entry(8), self.entry(4)]

    def around(self, best: Entry) -> Sequence[Entry]:
        at = best.config.get("at") if best.config is not None else 0
        return [self.entry(at // 2), self.entry(at * 2)]


class Pair(Bout):
    """Two backends that each have a default and others around it; some give the same code."""

    key, problem = "pair", PROBLEM

    def __init__(self) -> None:
        self.backends = {name: SimpleNamespace(name=name) for name in ("one", "two")}

    def entry(self, name: str, text: str, code: str) -> Entry:
        backend: Any = self.backends[name]
        step = Ordered(backend, Source("kernel", code, "text"), ())
        return Entry(f"{name} {text}".strip(), (step,), backend, Config())

    def opening(self) -> Sequence[Entry]:
        return [self.entry(name, "", f"{name} default") for name in self.backends]

    def around(self, best: Entry) -> Sequence[Entry]:
        assert best.backend is not None
        name = best.backend.name
        return [self.entry(name, "wide", f"{name} wide"), self.entry(name, "same", f"{name} default")]


def test_equal_code_is_timed_once_and_close_rivals_are_searched_too(monkeypatch):
    times = {"one": 1.0, "two": 1.05, "one wide": 0.99, "two wide": 0.9}

    def fake(track: Any, problem: Any, found: Sequence[Candidate], *_: Any) -> dict[str, float]:
        return {c.name: times[c.name] for c in found}

    monkeypatch.setattr(heat_module, "race", fake)
    for rival, best in ((1.05, "two wide"), (1.5, "one")):
        times["two"] = rival
        heat = Heat(Pair(), Measured())
        heat.enter(heat.bout.opening())
        heat.time(None, Shop(), Rules())  # type: ignore[arg-type]
        while heat.goes_on():
            heat.time(None, Shop(), Rules())  # type: ignore[arg-type]
        names = ["one", "two", "one wide", "two wide"] if rival < 1.1 else ["one", "two", "one wide"]
        assert sorted(heat.entries) == sorted(names)
        assert heat.measured(final=True).best == ("one wide" if best == "one" else best)


class Shop:
    def is_built(self, entry: Entry) -> bool:
        return True

    def candidate(self, entry: Entry) -> Candidate:
        if entry.name == "at=64":
            raise Fault("it cannot be built")
        return Candidate(entry.name, ())


def search(
    monkeypatch: pytest.MonkeyPatch, library: float, known: Measured | None = None
) -> tuple[Heat, list[list[str]]]:
    rounds: list[list[str]] = []

    def fake(track: Any, problem: Any, found: Sequence[Candidate], *_: Any) -> dict[str, float]:
        rounds.append([c.name for c in found])
        return {c.name: library if c.name == "library" else 100 / int(c.name[3:]) for c in found}

    monkeypatch.setattr(heat_module, "race", fake)
    heat = Heat(Line(), known or Measured())
    heat.enter(heat.bout.opening())
    while True:
        heat.time(None, Shop(), Rules())  # type: ignore[arg-type]
        if not heat.goes_on():
            return heat, rounds


def test_the_search_goes_on_around_the_best(monkeypatch):
    heat, rounds = search(monkeypatch, library=10.0)
    assert rounds == [["library", "at=8", "at=4"], ["library", "at=16"], ["at=16", "at=32"]]
    assert heat.measured(final=True).best == "at=32"
    assert heat.measured().best is None
    assert heat.times["at=64"] == LOST


def test_far_behind_the_library_there_is_nothing_to_search(monkeypatch):
    heat, rounds = search(monkeypatch, library=1.0)
    assert rounds == [["library", "at=8", "at=4"]]
    assert heat.measured(final=True).best == "library"


def test_the_library_wins_a_draw(monkeypatch):
    heat, _ = search(monkeypatch, library=100 / 32 * 1.01)
    assert heat.measured(final=True).best == "library"


def test_what_is_known_is_not_timed_again(monkeypatch):
    known = Measured({"library": 10.0, "at=8": 12.5, "at=4": 25.0, "at=16": 6.25})
    _, rounds = search(monkeypatch, 10.0, known)
    assert rounds == [["at=16", "at=32"]]
