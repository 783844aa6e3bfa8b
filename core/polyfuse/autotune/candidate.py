"""Candidates as plain data that another process understands: operands, library calls, built kernels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore, Located
from polyfuse.cache.timings import Candidate
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Config, Launchable, No, Source
from polyfuse.workers import BuildFuture, BuildPool

_log = get_logger("autotune")


class Fault(Exception):
    """A candidate failed; the text says how."""


@dataclass(frozen=True)
class Storage:
    """The elements of one buffer.

    Attributes:
        dtype: torch's name of the type.
        device: where it lies.
        count: elements.
        fill: `normal` (random), `small` (integers from 0 to 7), `zero`, for what may be indices, or
            `ends` and a number: where groups end that share so much almost evenly.
        cold: whether a model would read it from memory, not from a cache, such as weights.
        updated: whether a candidate reads it and then writes to it. Each sample begins with the same numbers,
            since those that were updated often enough are too small for CPUs to be as fast as usual.
    """

    dtype: str
    device: str
    count: int
    fill: str = "normal"
    cold: bool = False
    updated: bool = False

    @property
    def about(self) -> str:
        """Its type and number of elements."""
        return f"{self.dtype}[{self.count}]"


@dataclass(frozen=True)
class Slot:
    """A storage of a problem, by its number."""

    number: int


@dataclass(frozen=True)
class Window:
    """A tensor on a storage."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str


@dataclass(frozen=True)
class TorchName:
    """An object that torch has under a name, such as a dtype."""

    name: str


@dataclass(frozen=True)
class CallStep:
    """A call of an operator.

    Attributes:
        op: its name.
        args, named: its arguments: numbers, texts, tuples, `Window`, `TorchName`; another call stands for its
            result, which is computed before anything is timed.
        into: where the result belongs.
        out: whether it is called with `out=`.
    """

    op: str
    args: tuple[object, ...]
    named: tuple[tuple[str, object], ...] = ()
    into: Window | None = None
    out: bool = False


@dataclass(frozen=True)
class KernelStep:
    """A launch of a built kernel: who loads it, from where, and what it is launched with."""

    backend: str
    folder: str
    key: str
    operands: tuple[Operand, ...]


Operand = Slot | CallStep | int
"""What a kernel is launched with."""

Step = CallStep | KernelStep


@dataclass(frozen=True)
class BuiltProgram:
    """The steps of one candidate in order, with its kernels built."""

    name: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Problem:
    """What all candidates of a task share.

    Attributes:
        about: what it is, for people.
        device: where it runs.
        timer: the backend that times work on the device.
        storages: the operands; one that occurs twice is one storage.
        results: the storages that every candidate fills.
        tolerance: by how much results may differ, relative to the largest of the first candidate.
    """

    about: str
    device: str
    timer: str
    storages: tuple[Storage, ...]
    results: tuple[int, ...] = ()
    tolerance: float = 0.0


@dataclass(frozen=True)
class WorkerSetup:
    """Settings, plugins and devices of the compiling process, from which a worker configures itself.

    Attributes:
        settings: the options.
        backends: where each backend's class is, as its manifest says, by name.
        threads: how many compute.
        devices: the class that answers for each device type in use, as ``package.module:Class``, and the
            switches of its libraries.
        registered: the plugins that the program registered, in order: names, and where they can be imported.
    """

    settings: Settings
    backends: Mapping[str, str]
    threads: int = 1
    devices: Mapping[str, tuple[str, Mapping[str, object]]] = field(default_factory=dict)
    registered: tuple[tuple[str, str], ...] = ()


# So many kernels for each worker are asked for at once, where time may run out.
_SLICE = 2
# Seconds after which an observer hears how far builds are.
_WATCHED = 0.25


@dataclass(frozen=True)
class KernelRequest:
    """A launch of a kernel that is still to be built.

    Attributes:
        backend, source, operands: what is built, and what it is launched with.
        kernel, config: what the source was generated from, where it was.
    """

    backend: Backend
    source: Source
    operands: tuple[Operand, ...]
    kernel: Kernel | None = field(default=None, compare=False)
    config: Config | None = field(default=None, compare=False)


@dataclass(frozen=True)
class CandidateProgram:
    """The steps of one candidate, with kernels still to be built.

    Attributes:
        candidate: which it is.
        steps: in order.
        backend: who generates what is compared; None for a library.
    """

    candidate: Candidate
    steps: tuple[CallStep | KernelRequest, ...]
    backend: Backend | None = None

    @property
    def name(self) -> str:
        """The candidate's, unique in a search."""
        return str(self.candidate)

    @property
    def config(self) -> Config | None:
        """In which configuration it is generated."""
        return self.candidate.config


class BuiltCall:
    """A kernel as an object that a program calls; the first call waits for its build."""

    def __init__(self, future: BuildFuture, key: str) -> None:
        self._future = future
        self._key = key
        self._kernel: Launchable | None = None

    def __call__(self, *operands: object) -> None:
        """Launch."""
        if self._kernel is None:
            self._kernel = self._future.result()[self._key]
        self._kernel(*operands)


class CandidateBuilder:
    """Builds what candidates need, in parallel.

    Args:
        until: the `time.monotonic` after which nothing more is begun to build; what is under way is waited
            for.
    """

    def __init__(self, pool: BuildPool, store: KernelStore, until: float = math.inf) -> None:
        self._pool = pool
        self._store = store
        self._until = until
        self._futures: dict[tuple[str, str], BuildFuture] = {}
        self._waiting: dict[tuple[str, str], KernelRequest] = {}
        self._round: list[BuildFuture] = []

    def begin(self, programs: Sequence[CandidateProgram]) -> None:
        """Start to build what these need and was not asked for before."""
        self._round = []
        for program in programs:
            for step in program.steps:
                if isinstance(step, KernelRequest) and _build_key(step) not in self._futures:
                    self._waiting.setdefault(_build_key(step), step)
        # all at once is best, but what is begun cannot be called back
        self._submit(len(self._waiting) if self._until == math.inf else _SLICE * self._pool.workers)

    def wait(self, observe: Callable[[int, int], None] | None = None) -> None:
        """Wait for all builds: they would disturb whoever is timed meanwhile.

        Args:
            observe: called now and then with how many kernels are built, and of how many.
        """
        while True:
            left = sum(future.left() for future in self._round)
            asked = sum(len(future.keys) for future in self._round)
            if observe is not None:
                observe(asked - left, asked + len(self._waiting))
            room = _SLICE * self._pool.workers - left
            if self._waiting and room > 0 and time.monotonic() < self._until:
                self._submit(room)
            elif left:
                # the last of them may have ended since they were counted
                unfinished = next((future for future in self._round if not future.done()), None)
                if unfinished is not None:
                    unfinished.left(_WATCHED)
            else:
                break
        self._waiting.clear()
        self._pool.wait_until_idle()

    def is_built(self, program: CandidateProgram) -> bool:
        """Whether all that a candidate needs was asked for: what there was no time for is left out."""
        return all(
            _build_key(step) in self._futures for step in program.steps if isinstance(step, KernelRequest)
        )

    def _submit(self, most: int) -> None:
        """Begin to build as many of those that wait."""
        wanted: dict[str, tuple[Backend, dict[str, Source]]] = {}
        for key in [*self._waiting][:most]:
            step = self._waiting.pop(key)
            wanted.setdefault(step.backend.name, (step.backend, {}))[1][step.source.key] = step.source
        for name, (backend, sources) in wanted.items():
            future = self._pool.submit(backend, list(sources.values()), self._store)
            self._futures.update({(name, key): future for key in sources})
            self._round.append(future)

    def built(self, program: CandidateProgram) -> BuiltProgram:
        """The candidate, built.

        Raises:
            Fault: a kernel of it cannot be built, or is not as its backend wants it.
        """
        steps: list[Step] = []
        for step in program.steps:
            steps.append(self._built(step) if isinstance(step, KernelRequest) else step)
        return BuiltProgram(program.name, tuple(steps))

    def _built(self, step: KernelRequest) -> KernelStep:
        location = self._futures[_build_key(step)].locations()[step.source.key]
        if isinstance(location, PolyfuseError):
            raise Fault(f"it cannot be built: {location.cause}")
        assert isinstance(location, Located)
        claim = step.backend.review(location.folder, location.source_key)
        if isinstance(claim, No):
            raise Fault(claim.reason)
        return KernelStep(step.backend.name, str(location.folder), location.source_key, step.operands)


def _build_key(step: KernelRequest) -> tuple[str, str]:
    return step.backend.name, step.source.key


def request_kernel(
    backend: Backend, kernel: Kernel, config: Config | None, operands: tuple[Operand, ...]
) -> KernelRequest | None:
    """A launch in one configuration; None, with a line in the log, where the backend cannot emit it."""
    try:
        return KernelRequest(backend, backend.emit(kernel, config), operands, kernel, config)
    except Exception as error:
        _log.info("backend %r cannot emit %s with %s: %s", backend.name, kernel.name, config, error)
        return None
