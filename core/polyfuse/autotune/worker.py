"""The benchmark worker: the process in which candidates run. They may crash it or never return, and nothing
else is harmed.

Run as `python -m polyfuse.autotune.worker DESCRIPTOR`, with a pipe to the process that compiles. It answers
one request at a time, and ends when the pipe is closed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from polyfuse.autotune.benchmark import Benchmark
from polyfuse.autotune.candidate import BuiltProgram, Fault, Problem, WorkerSetup
from polyfuse.base.errors import PolyfuseError
from polyfuse.base.process import ForkedLock, python_command, python_environment
from polyfuse.base.text import shorten
from polyfuse.plugin import Backend, PluginManager, Timer
from polyfuse.plugin.hooks.registry import register_imported
from polyfuse.plugin.session.guarded_device import import_guarded
from polyfuse.plugin.timing import default_timer
from polyfuse.runtime.devices.registry import class_name, device_of

# Seconds in which a worker starts and imports torch.
_START_SECONDS = 180.0
# Seconds after which a wait looks at the clock.
_SLICE = 0.5
# Seconds to make the operands of a problem.
_PREPARE_SECONDS = 120.0
# Seconds after which a worker without work ends: it holds memory, on the device too.
_IDLE_SECONDS = 20.0


class WorkerProcess:
    """A running worker, as the process that compiles sees it.

    Attributes:
        problem: what it was prepared for last.
        devices: the types of device that it knows.
        strict: whether faults of their classes are raised there.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.problem: Problem | None = None
        self.devices = set(setup.devices)
        self.strict = setup.settings.strict
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self._channel, other = Pipe()
        self._process = subprocess.Popen(
            python_command("polyfuse.autotune.worker", str(other.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=(other.fileno(),),
            env=python_environment(
                *setup.backends.values(), *(import_path for _, import_path in setup.registered)
            ),
            # a key that interrupts the parent is the parent's to answer
            start_new_session=True,
        )
        other.close()
        self._started = False
        self._starter = os.getpid()
        self._send("start", (setup,), _START_SECONDS)

    @property
    def alive(self) -> bool:
        """Whether it can be asked again."""
        return self._process.poll() is None

    def ask(self, name: str, arguments: tuple[object, ...], seconds: float) -> Any:
        """The answer to a request.

        Raises:
            Fault: the request raised, the worker died over it, or it took too long, which ends the worker.
        """
        if not self._started:
            self._answer(_START_SECONDS)
            self._started = True
        self._send(name, arguments, seconds)
        return self._answer(seconds)

    @property
    def is_own(self) -> bool:
        """Whether this process started it, and not one that this was forked from, which may be asking it."""
        return self._starter == os.getpid()

    def end(self) -> None:
        """End it, with all that it started; another process's worker is left alone."""
        if self.is_own:
            self._kill()
        self._channel.close()
        self._output.close()

    def _send(self, name: str, arguments: tuple[object, ...], seconds: float) -> None:
        # a worker that is gone is found out when its answer does not come
        with contextlib.suppress(OSError):
            self._channel.send((name, arguments, seconds))

    def _answer(self, seconds: float) -> Any:
        try:
            if not self._waited(seconds):
                self._kill()
                raise Fault(f"it did not end within {seconds:.0f} seconds")
            outcome, value = self._channel.recv()
        except (EOFError, OSError):
            raise Fault(self._death()) from None
        if outcome == "raised":
            raise Fault(f"it raised {value}")
        return value

    def _waited(self, seconds: float) -> bool:
        """Wait for an answer. Time in which this process stood still, too, does not count: machines sleep."""
        left = seconds
        while left > 0:
            before = time.monotonic()
            if self._channel.poll(min(left, _SLICE)):
                return True
            left -= min(time.monotonic() - before, 2 * _SLICE)
        return False

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _death(self) -> str:
        status = self._process.wait()
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        self._output.seek(0)
        lines = self._output.read().decode("utf-8", "replace").strip().splitlines()
        words = f" ({shorten(lines[-1], 120)})" if lines else ""
        return f"the process that ran it died {how}{words}"


class TrialRunner(ABC):
    """Where the candidates of one problem after another run. Every method but `close` raises `Fault`."""

    @abstractmethod
    def prepare(self, problem: Problem) -> None:
        """Make the operands of a problem."""

    def first(self, program: BuiltProgram) -> float:
        """Load a program and return the milliseconds of one run."""
        return self._ask("first", program)

    def sample(self, program: BuiltProgram) -> float:
        """Milliseconds of one run, measured with care."""
        return self._ask("sample", program)

    def check(self, program: BuiltProgram, reference: BuiltProgram) -> float:
        """How far the results of two programs are apart, in units of what is allowed."""
        return self._ask("check", program, reference)

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    @abstractmethod
    def _ask(self, name: str, *arguments: object) -> Any:
        """The answer of the method of `Benchmark` of that name."""


class InProcessRunner(TrialRunner):
    """This process, for debugging."""

    def __init__(
        self, backend: Callable[[str], Backend], timer: Callable[[str, str], Timer] | None = None
    ) -> None:
        self._benchmark = Benchmark(backend, timer)

    def prepare(self, problem: Problem) -> None:
        """Make the operands of a problem."""
        self._ask("prepare", problem)

    def close(self) -> None:
        """Let go of the last problem."""
        self._benchmark.clear()

    def _ask(self, name: str, *arguments: object) -> Any:
        try:
            return getattr(self._benchmark, name)(*arguments)
        except (Exception, SystemExit) as error:
            raise Fault(f"it raised {type(error).__name__}: {error}") from error


class WorkerRunner(TrialRunner):
    """A benchmark worker. One that dies, or does not answer in time, is replaced at the next request.

    Args:
        setup: the configuration that the worker gets at its start.
        seconds: how long a candidate may take to load, or to be timed once.
    """

    def __init__(self, setup: Callable[[], WorkerSetup], seconds: float) -> None:
        self._setup = setup
        self._seconds = seconds
        self._worker: WorkerProcess | None = None
        self._problem: Problem | None = None
        self._lock = ForkedLock(again=True)
        self._idle: threading.Timer | None = None

    def start(self) -> None:
        """Start the worker, which takes a while, and return at once."""
        with self._lock:
            if self._worker is None or not self._worker.is_own:
                self._worker = WorkerProcess(self._setup())
            self._rest()

    def prepare(self, problem: Problem) -> None:
        """Make the operands of a problem."""
        with self._lock:
            self._problem = problem
            if self._worker is not None:
                self._worker.problem = None
            self._ready()

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            if self._worker is not None:
                self._worker.end()
                self._worker = None

    def _ask(self, name: str, *arguments: object) -> Any:
        with self._lock:
            worker = self._ready()
            try:
                return worker.ask(name, arguments, self._seconds)
            except Fault:
                device = self._problem.device if self._problem is not None else "cpu"
                # a fault can leave a device in a state in which nothing works any more
                if not worker.alive or not device_of(device).is_host:
                    self.close()
                raise

    def _ready(self) -> WorkerProcess:
        """A worker that holds the problem."""
        self.start()
        assert self._worker is not None
        worker = self._worker
        try:
            if worker.problem is not self._problem:
                assert self._problem is not None
                _tell_of_device(worker, torch.device(self._problem.device).type)
                worker.ask("prepare", (self._problem,), _PREPARE_SECONDS)
                worker.problem = self._problem
        except Fault:
            self.close()
            raise
        return worker

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = threading.Timer(_IDLE_SECONDS + self._seconds, _close, (weakref.ref(self),))
        self._idle.daemon = True
        self._idle.start()


def _tell_of_device(worker: WorkerProcess, device_type: str) -> None:
    """Let a worker that was started before this process met a type of device know who answers for it."""
    if device_type not in worker.devices:
        device = device_of(device_type)
        devices = {device_type: (class_name(device), device.switches())}
        worker.ask("use", (devices, worker.strict), _PREPARE_SECONDS)
        worker.devices.add(device_type)


def _close(runner: weakref.ref[WorkerRunner]) -> None:
    found = runner()
    if found is not None:
        found.close()


def main() -> int:
    """Serve requests until the pipe is closed."""
    with contextlib.suppress(OSError):  # should memory run out, this process is the one to lose
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    channel = Connection(int(sys.argv[1]))
    benchmark: Benchmark | None = None
    while True:
        try:
            name, arguments, limit = channel.recv()
        except EOFError:
            return 0
        # whoever waits ends this process when it takes too long; should nobody wait any more, it ends itself
        answer: tuple[str, object]
        faulthandler.dump_traceback_later(2 * limit + 10, exit=True)
        try:
            if name == "start":
                benchmark = _started(*arguments)
                answer = ("done", None)
            elif name == "use":
                _use_devices(*arguments)
                answer = ("done", None)
            else:
                answer = ("done", getattr(benchmark, name)(*arguments))
        except BaseException as error:
            answer = ("raised", f"{type(error).__name__}: {error}")
        finally:
            faulthandler.cancel_dump_traceback_later()
        channel.send(answer)


def _started(setup: WorkerSetup) -> Benchmark:
    torch.set_num_threads(setup.threads)
    _use_devices(setup.devices, setup.settings.strict)
    torch.set_grad_enabled(False)
    return Benchmark(_loader(setup), _timers(setup))


def _use_devices(devices: Mapping[str, tuple[str, Mapping[str, object]]], strict: bool) -> None:
    for device_type, (name, switches) in devices.items():
        import_guarded(device_type, name, strict).set_switches(switches)


def _loader(setup: WorkerSetup) -> Callable[[str], Backend]:
    made: dict[str, Backend] = {}

    def backend(name: str) -> Backend:
        if name not in made:
            module, _, attribute = setup.backends[name].partition(":")
            factory: Any = getattr(import_module(module), attribute)
            made[name] = factory(setup.settings)
            made[name].name = name
        return made[name]

    return backend


def _timers(setup: WorkerSetup) -> Callable[[str, str], Timer]:
    """What times launches, by the plugins that are installed, and those that the program registered; they are
    looked for when one is needed.
    """
    made: list[PluginManager] = []

    def timer(backend: str, device_type: str) -> Timer:
        if not made:
            try:
                register_imported(setup.registered)
                made.append(PluginManager(setup.settings))
            except PolyfuseError:  # an option names what only the process that compiles knows
                return default_timer(device_type)
        return made[0].timer(backend, device_type)

    return timer


if __name__ == "__main__":
    # at once: nothing is left to be saved, and to tear down torch takes longer than whoever waits may like
    os._exit(main())
