"""The child in which candidates run: waiting for it, its death, its end."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from polyfuse.autotune import worker as worker
from polyfuse.autotune.candidate import (
    BuiltProgram,
    CallStep,
    Fault,
    KernelStep,
    Problem,
    Slot,
    Storage,
    Window,
    WorkerSetup,
)
from polyfuse.autotune.worker import WorkerProcess, WorkerRunner
from polyfuse.base.settings import Settings
from polyfuse.compiler.session import forget_sessions, session_for
from polyfuse.plugin import hookimpl, register, unregister
from polyfuse.plugin.hooks.registry import importable

SQUARE = Window(0, (4, 4), (4, 1), 0, "float32")
PROBLEM = Problem("a product", "cpu", "interpreter", (Storage("float32", "cpu", 16),))
GOOD = BuiltProgram("good", (CallStep("aten.mm.default", (SQUARE, SQUARE)),))
BAD = BuiltProgram("bad", (CallStep("aten.mm.default", (SQUARE, 3)),))


def setup() -> WorkerSetup:
    return WorkerSetup(Settings(), {"interpreter": "polyfuse.reference.backend:InterpreterBackend"})


PLUGIN = """
from polyfuse.plugin import HostTimer, hookimpl


class Constant(HostTimer):
    def milliseconds(self, launches):
        launches[0]()
        return 42.0


@hookimpl
def polyfuse_timer(device_type, backend):
    return Constant()
"""


STUCK = """
import ctypes

state = []


class Stuck:
    def __init__(self, settings):
        pass

    def load(self, folder):
        return {"hangs": lambda *_: ctypes.PyDLL(None).pause(), "breaks": breaks}


def breaks(*operands):
    import torch

    def lost(*_, **__):
        raise torch.AcceleratorError("an illegal memory access was encountered")

    torch.mm = lost
    lost()
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerRunner]:
    """One for several tests, since a worker takes seconds to start; its timer is a registered plugin's."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "timer_of_a_test.py").write_text(PLUGIN)
    (folder / "stuck_of_a_test.py").write_text(STUCK)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        timer = importable(importlib.import_module("timer_of_a_test"))
        made = replace(
            setup(),
            backends={**setup().backends, "stuck": "stuck_of_a_test:Stuck"},
            devices={"cpu": ("polyfuse.runtime.devices.host:HostDevice", {})},
            registered=(("constant", timer),),
        )
        runner = WorkerRunner(lambda: made, 120)
        yield runner
        runner.close()


def test_candidates_are_timed_in_another_process(runner):
    with pytest.raises(Fault, match="AttributeError"):  # its operands cannot be made
        runner.prepare(Problem("", "cpu", "interpreter", (Storage("float31", "cpu", 16),)))
    runner.prepare(PROBLEM)
    assert runner._worker is not None and runner._worker.devices == {"cpu"}, "met after the worker's start"
    assert 0 < runner.first(GOOD) < 1e4
    assert runner.sample(GOOD) == 42.0, "the worker imports what the program registered"
    with pytest.raises(Fault, match="raised"):
        runner.first(BAD)
    assert runner._worker is not None and runner._worker.alive
    # after its death a new one takes over, with the same problem
    os.kill(runner._worker._process.pid, 9)
    with pytest.raises(Fault, match="SIGKILL"):
        runner.sample(GOOD)
    assert runner.sample(GOOD) == 42.0


def test_time_in_which_nobody_ran_does_not_count(monkeypatch):
    child = WorkerProcess.__new__(WorkerProcess)
    polls: list[float] = []

    class Channel:
        def poll(self, seconds: float) -> bool:
            polls.append(seconds)
            return len(polls) == 4

    clock = itertools.count(0, 1000)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    child._channel = Channel()  # type: ignore[assignment]
    assert child._waited(10.0)
    polls.clear()
    assert not child._waited(2.0)


def test_kernels_that_never_end_or_break_the_device_cost_only_themselves(runner, monkeypatch, tmp_path):
    """The worker is killed, though it would not hear a signal, and nobody else sees the device's state."""
    monkeypatch.setattr(worker, "device_of", lambda name: SimpleNamespace(is_host=False))
    runner.prepare(PROBLEM)
    for key, words in (("breaks", "illegal memory access"), ("hangs", "did not end within 2 seconds")):
        assert runner.sample(GOOD) == 42.0
        first = runner._ready()
        step = KernelStep("stuck", str(tmp_path), key, (Slot(0),))
        # on a busy machine, what ends may take any time
        monkeypatch.setattr(runner, "_seconds", 2 if key == "hangs" else 120)
        with pytest.raises(Fault, match=words):
            runner.first(BuiltProgram(key, (step,)))
        assert not first.alive
        monkeypatch.setattr(runner, "_seconds", 120)
    runner.close()
    assert runner._worker is None


def test_what_another_process_can_import(monkeypatch):
    here = sys.modules[__name__]
    assert importable(here) == __name__
    assert importable(WorkerRunner) == "polyfuse.autotune.worker:WorkerRunner"
    assert importable(object()) == importable(WorkerRunner(setup, 1)) == ""
    monkeypatch.setattr(here, "PROBLEM", SimpleNamespace())
    assert importable(PROBLEM) == "", "its class is of another module"
    made = ModuleType("made_by_hand")
    monkeypatch.setitem(sys.modules, "made_by_hand", made)
    assert importable(made) == ""


def test_a_registered_plugin_that_the_worker_cannot_import_is_named_once(warnings_seen):
    class Timed:
        @hookimpl
        def polyfuse_timer(self, device_type):
            return None

    class Untimed:
        @hookimpl
        def polyfuse_doctor(self):
            return ()

    plugins = [Timed(), Untimed()]
    for one in plugins:
        register(one)
    try:
        session = session_for(Settings(tune_kernels=True))
        assert not session.tuner._setup().registered and not session.tuner._setup().registered
    finally:
        for one in plugins:
            unregister(one)
        forget_sessions()
    (text,) = warnings_seen()
    assert "plugin 'Timed'" in text and "`tune_in_process`" in text
