"""What threads of a process are at when it is forked: the child has none of them, and waits for none."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest
import torch

from polyfuse.autotune import worker
from polyfuse.autotune.worker import WorkerRunner
from polyfuse.base.process import Background, ForkedLock
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.workers import BuildPool
from toy_backend import ToyBackend, source

PARENT = os.getpid()


def in_child(function: Callable[[], object]) -> str:
    """What a forked child says; it is killed where it waits."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            os.write(writing, str(function()).encode())
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def go():
    """What the parent's threads wait for."""
    event = threading.Event()
    yield event
    event.set()


def test_a_child_computes_again_what_was_under_way(go):
    def compute():
        if os.getpid() == PARENT:
            go.wait()
        return f"of {'the parent' if os.getpid() == PARENT else 'a child'}"

    under_way = Background(compute, "under-way")
    assert not under_way.done()
    assert in_child(under_way.result) == "of a child"
    go.set()
    assert under_way.result() == "of the parent"
    assert in_child(lambda: (under_way.done(), under_way.result())) == "(True, 'of the parent')"


def test_what_computing_raised_is_raised():
    failed = Background(lambda: 1 // 0, "failed")
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert isinstance(failed.exception(), ZeroDivisionError)


@pytest.mark.parametrize("again", [False, True])
def test_a_child_finds_locks_free(again, go):
    lock, held = ForkedLock(again), threading.Event()

    def hold():
        with lock:
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def enter():
        with lock:
            return "within"

    assert in_child(enter) == "within"
    go.set()
    thread.join()
    assert enter() == "within"


def test_a_child_has_what_its_parent_builds(tmp_path, go):
    """Another thread waits for the same kernels, and has taken what it waits with."""
    entered = threading.Event()

    class Waiting(ToyBackend):
        def build(self, sources, folder):
            if os.getpid() == PARENT:
                entered.set()
                go.wait()
            super().build(sources, folder)

    def said(future):
        words = []
        for kernel in future.result().values():
            kernel(words)
        return " ".join(words)

    store = KernelStore(tmp_path)
    with BuildPool(Settings(build_workers=1)) as pool:
        backend = Waiting(Settings())
        future = pool.submit(backend, [source("one"), source("two")], store)
        behind = pool.submit(backend, [source("three")], store)
        waiting = threading.Thread(target=future.result)
        waiting.start()
        entered.wait()
        threading.Timer(0.2, go.set).start()  # a child waits for files that its parent is writing
        assert in_child(lambda: f"{said(behind)} {said(future)}") == "three one two"
        waiting.join()
        assert said(future) == "one two" and said(behind) == "three"


def test_a_child_calls_what_another_thread_calls_for_the_first_time(go):
    from polyfuse.runtime.module import CompiledModule

    class Pending:
        def result(self):
            if os.getpid() == PARENT:
                entered.set()
                go.wait()
            return lambda: None

    entered = threading.Event()
    space = {"DEVICE": "", "KERNELS": ("k",), "INPUTS": (("x", "tensor", "float32", "cpu"),), "CHECKS": ()}
    space |= {"k": None, "ALIGNED": (), "OBJECTS": {}, "call": lambda args: tuple(args)}
    module = CompiledModule("program", "", "", space, {"k": Pending()})
    x = torch.ones(3)
    first = threading.Thread(target=lambda: module([x]))
    first.start()
    entered.wait()
    assert in_child(lambda: module([x])[0].sum().item()) == "3.0"
    go.set()
    first.join()


def test_a_benchmark_worker_is_its_parents(monkeypatch):
    """A child that asked it, too, would read answers to its parent; it starts one of its own."""

    class Started:
        def __init__(self, setup):
            self.starter, self.ended = os.getpid(), False

        @property
        def is_own(self):
            return self.starter == os.getpid()

        def end(self):
            self.ended = True

    monkeypatch.setattr(worker, "WorkerProcess", Started)
    runner = WorkerRunner(lambda: None, 1.0)
    runner.start()
    mine = runner._worker

    def start():
        runner.start()
        another = runner._worker is not mine
        runner.start()
        return another, runner._worker.is_own

    assert in_child(start) == "(True, True)"
    assert runner._worker is mine
    runner.close()
    assert mine.ended
