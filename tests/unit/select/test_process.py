"""The child in which candidates run: waiting for it, its death, its end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from polyfuse.base.settings import Settings
from polyfuse.select import process
from polyfuse.select.process import Child, Fault
from polyfuse.select.tracks import ChildTrack
from polyfuse.select.work import CallWork, Candidate, Circumstances, Problem, Storage, Window

SQUARE = Window(0, (4, 4), (4, 1), 0, "float32")
PROBLEM = Problem("a product", "cpu", "interpreter", (Storage("float32", "cpu", 16),))
GOOD = Candidate("good", (CallWork("aten.mm.default", (SQUARE, SQUARE)),))
BAD = Candidate("bad", (CallWork("aten.mm.default", (SQUARE, 3)),))


def circumstances() -> Circumstances:
    return Circumstances(Settings(), {"interpreter": "polyfuse.reference.backend:InterpreterBackend"})


@pytest.fixture
def track() -> Iterator[ChildTrack]:
    track = ChildTrack(circumstances, 30)
    yield track
    track.close()


def test_candidates_are_timed_in_another_process(track):
    track.prepare(PROBLEM)
    assert 0 < track.first(GOOD) < 1e4 and 0 < track.sample(GOOD) < 1e4
    with pytest.raises(Fault, match="raised"):
        track.first(BAD)
    assert track._child is not None and track._child.alive
    # after its death a new one takes over, with the same problem
    os.kill(track._child._process.pid, 9)
    with pytest.raises(Fault, match="SIGKILL"):
        track.sample(GOOD)
    assert track.sample(GOOD) > 0
    track.close()
    assert track._child is None


def test_operands_that_cannot_be_made(track):
    with pytest.raises(Fault, match="AttributeError"):
        track.prepare(Problem("", "cpu", "interpreter", (Storage("float31", "cpu", 16),)))


def test_time_in_which_nobody_ran_does_not_count(monkeypatch):
    child = Child.__new__(Child)
    polls: list[float] = []

    class Channel:
        def poll(self, seconds: float) -> bool:
            polls.append(seconds)
            return len(polls) == 4

    clock = itertools.count(0, 1000)
    monkeypatch.setattr(process.time, "monotonic", lambda: float(next(clock)))
    child._channel = Channel()  # type: ignore[assignment]
    assert child._waited(10.0)
    polls.clear()
    assert not child._waited(2.0)
