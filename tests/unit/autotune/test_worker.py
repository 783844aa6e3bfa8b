"""The child in which candidates run: waiting for it, its death, its end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from polyfuse.autotune import worker as worker
from polyfuse.autotune.candidate import BuiltProgram, CallStep, Fault, Problem, Storage, Window, WorkerSetup
from polyfuse.autotune.worker import WorkerProcess, WorkerRunner
from polyfuse.base.settings import Settings

SQUARE = Window(0, (4, 4), (4, 1), 0, "float32")
PROBLEM = Problem("a product", "cpu", "interpreter", (Storage("float32", "cpu", 16),))
GOOD = BuiltProgram("good", (CallStep("aten.mm.default", (SQUARE, SQUARE)),))
BAD = BuiltProgram("bad", (CallStep("aten.mm.default", (SQUARE, 3)),))


def setup() -> WorkerSetup:
    return WorkerSetup(Settings(), {"interpreter": "polyfuse.reference.backend:InterpreterBackend"})


@pytest.fixture
def runner() -> Iterator[WorkerRunner]:
    runner = WorkerRunner(setup, 30)
    yield runner
    runner.close()


def test_candidates_are_timed_in_another_process(runner):
    runner.prepare(PROBLEM)
    assert 0 < runner.first(GOOD) < 1e4 and 0 < runner.sample(GOOD) < 1e4
    with pytest.raises(Fault, match="raised"):
        runner.first(BAD)
    assert runner._worker is not None and runner._worker.alive
    # after its death a new one takes over, with the same problem
    os.kill(runner._worker._process.pid, 9)
    with pytest.raises(Fault, match="SIGKILL"):
        runner.sample(GOOD)
    assert runner.sample(GOOD) > 0
    runner.close()
    assert runner._worker is None


def test_operands_that_cannot_be_made(runner):
    with pytest.raises(Fault, match="AttributeError"):
        runner.prepare(Problem("", "cpu", "interpreter", (Storage("float31", "cpu", 16),)))


def test_time_in_which_nobody_ran_does_not_count(monkeypatch):
    child = WorkerProcess.__new__(WorkerProcess)
    polls: list[float] = []

    class Channel:
        def poll(self, seconds: float) -> bool:
            polls.append(seconds)
            return len(polls) == 4

    clock = itertools.count(0, 1000)
    monkeypatch.setattr(worker.time, "monotonic", lambda: float(next(clock)))
    child._channel = Channel()  # type: ignore[assignment]
    assert child._waited(10.0)
    polls.clear()
    assert not child._waited(2.0)
