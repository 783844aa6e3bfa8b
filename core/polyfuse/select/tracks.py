"""Where candidates are timed: in a child process, or in this one for debugging."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from polyfuse.plugin import Backend
from polyfuse.select.bench import Bench
from polyfuse.select.process import Child, Fault
from polyfuse.select.work import Candidate, Circumstances, Problem

__all__ = ["ChildTrack", "Fault", "LocalTrack", "Track"]

# Seconds to make the operands of a problem.
_PREPARE_SECONDS = 120.0
# Seconds after which a child without work ends: it holds memory, on the device too.
_IDLE_SECONDS = 20.0


class Track(Protocol):
    """Where candidates of one problem after another run."""

    def prepare(self, problem: Problem) -> None:
        """Begin with a problem."""

    def first(self, candidate: Candidate) -> float:
        """Load a candidate and return the milliseconds of one run; raises `Fault`."""

    def sample(self, candidate: Candidate) -> float:
        """Milliseconds of one run, measured with care; raises `Fault`."""

    def check(self, candidate: Candidate, reference: Candidate) -> float:
        """How far the results of two candidates are apart, in units of what is allowed; raises `Fault`."""

    def close(self) -> None:
        """Let go of everything."""


class LocalTrack:
    """This process."""

    def __init__(self, backend: Callable[[str], Backend]) -> None:
        self._bench = Bench(backend)

    def prepare(self, problem: Problem) -> None:
        """Begin with a problem."""
        self._ask(self._bench.prepare, problem)

    def first(self, candidate: Candidate) -> float:
        """Load a candidate and return the milliseconds of one run."""
        return self._ask(self._bench.first, candidate)

    def sample(self, candidate: Candidate) -> float:
        """Milliseconds of one run, measured with care."""
        return self._ask(self._bench.sample, candidate)

    def check(self, candidate: Candidate, reference: Candidate) -> float:
        """How far the results of two candidates are apart."""
        return self._ask(self._bench.check, candidate, reference)

    def close(self) -> None:
        """Let go of the last problem."""
        self._bench.clear()

    @staticmethod
    def _ask(function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise Fault(f"it raised {type(error).__name__}: {error}") from error


class ChildTrack:
    """A child process. One that dies, or does not answer in time, is replaced at the next request.

    Args:
        circumstances: what the child is told at its start.
        seconds: how long a candidate may take to load, or to be timed once.
    """

    def __init__(self, circumstances: Callable[[], Circumstances], seconds: float) -> None:
        self._circumstances = circumstances
        self._seconds = seconds
        self._child: Child | None = None
        self._problem: Problem | None = None
        self._lock = threading.RLock()
        self._idle: threading.Timer | None = None

    def start(self) -> None:
        """Start the child, which takes a while, and return at once."""
        with self._lock:
            if self._child is None:
                self._child = Child(self._circumstances())
            self._rest()

    def prepare(self, problem: Problem) -> None:
        """Begin with a problem."""
        with self._lock:
            self._problem = problem
            if self._child is not None:
                self._child.problem = None
            self._ready()

    def first(self, candidate: Candidate) -> float:
        """Load a candidate and return the milliseconds of one run."""
        return self._ask("first", candidate)

    def sample(self, candidate: Candidate) -> float:
        """Milliseconds of one run, measured with care."""
        return self._ask("sample", candidate)

    def check(self, candidate: Candidate, reference: Candidate) -> float:
        """How far the results of two candidates are apart."""
        return self._ask("check", candidate, reference)

    def close(self) -> None:
        """End the child."""
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            if self._child is not None:
                self._child.end()
                self._child = None

    def _ask(self, name: str, *arguments: object) -> Any:
        with self._lock:
            child = self._ready()
            try:
                return child.ask(name, arguments, self._seconds)
            except Fault:
                device = self._problem.device if self._problem is not None else "cpu"
                # a fault can leave a device in a state in which nothing works any more
                if not child.alive or not device.startswith("cpu"):
                    self.close()
                raise

    def _ready(self) -> Child:
        """A child that holds the problem."""
        self.start()
        assert self._child is not None
        child = self._child
        try:
            if child.problem is not self._problem:
                child.ask("prepare", (self._problem,), _PREPARE_SECONDS)
                child.problem = self._problem
        except Fault:
            self.close()
            raise
        return child

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = threading.Timer(_IDLE_SECONDS + self._seconds, _close, (weakref.ref(self),))
        self._idle.daemon = True
        self._idle.start()


def _close(track: weakref.ref[ChildTrack]) -> None:
    found = track()
    if found is not None:
        found.close()
