"""Kernels built for a race, all at once before the first is timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.log import get_logger
from polyfuse.cache import KernelStore, Located
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Config, Launchable, No, Source
from polyfuse.select.process import Fault
from polyfuse.select.work import CallWork, Candidate, KernelWork, Operand, Work
from polyfuse.workers import BuildFuture, BuildPool

__all__ = ["BuiltCall", "Entry", "Ordered", "Workshop", "ordered"]

_log = get_logger("select")

# So many kernels for each worker are asked for at once, where time may run out.
_SLICE = 2
# Seconds after which somebody who watches hears how far builds are.
_WATCHED = 0.25


@dataclass(frozen=True)
class Ordered:
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
class Entry:
    """One who takes part in a race.

    Attributes:
        name: unique in the race.
        steps: what it runs.
        backend, config: who generates what is compared, and how; None for a library.
    """

    name: str
    steps: tuple[CallWork | Ordered, ...]
    backend: Backend | None = None
    config: Config | None = None


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


class Workshop:
    """Builds what entries need, in parallel.

    Args:
        until: the `time.monotonic` after which nothing more is begun to build; what is under way is waited
            for.
    """

    def __init__(self, pool: BuildPool, store: KernelStore, until: float = math.inf) -> None:
        self._pool = pool
        self._store = store
        self._until = until
        self._futures: dict[tuple[str, str], BuildFuture] = {}
        self._waiting: dict[tuple[str, str], Ordered] = {}
        self._round: list[BuildFuture] = []

    def begin(self, entries: Sequence[Entry]) -> None:
        """Start to build what these need and was not asked for before."""
        self._round = []
        for entry in entries:
            for step in entry.steps:
                if isinstance(step, Ordered) and _place(step) not in self._futures:
                    self._waiting.setdefault(_place(step), step)
        # all at once is best, but what is begun cannot be called back
        self._submit(len(self._waiting) if self._until == math.inf else _SLICE * self._pool.workers)

    def wait(self, watch: Callable[[int, int], None] | None = None) -> None:
        """Wait for all builds: they would disturb whoever is timed meanwhile.

        Args:
            watch: is told now and then how many kernels of how many are built.
        """
        while True:
            left = sum(future.left() for future in self._round)
            asked = sum(len(future.keys) for future in self._round)
            if watch is not None:
                watch(asked - left, asked + len(self._waiting))
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

    def is_built(self, entry: Entry) -> bool:
        """Whether all that an entry needs was asked for: what there was no time for is left out."""
        return all(_place(step) in self._futures for step in entry.steps if isinstance(step, Ordered))

    def _submit(self, most: int) -> None:
        """Begin to build as many of those that wait."""
        wanted: dict[str, tuple[Backend, dict[str, Source]]] = {}
        for place in [*self._waiting][:most]:
            step = self._waiting.pop(place)
            wanted.setdefault(step.backend.name, (step.backend, {}))[1][step.source.key] = step.source
        for name, (backend, sources) in wanted.items():
            future = self._pool.submit(backend, list(sources.values()), self._store)
            self._futures.update({(name, key): future for key in sources})
            self._round.append(future)

    def candidate(self, entry: Entry) -> Candidate:
        """The entry, built.

        Raises:
            Fault: a kernel of it cannot be built, or is not as its backend wants it.
        """
        steps: list[Work] = []
        for step in entry.steps:
            steps.append(self._built(step) if isinstance(step, Ordered) else step)
        return Candidate(entry.name, tuple(steps))

    def _built(self, step: Ordered) -> KernelWork:
        place = self._futures[_place(step)].locations()[step.source.key]
        if isinstance(place, PolyfuseError):
            raise Fault(f"it cannot be built: {place.cause}")
        assert isinstance(place, Located)
        try:
            verdict = step.backend.review(place.folder, place.source_key)
        except Exception as error:
            raise Fault(f"its review raised {type(error).__name__}: {error}") from error
        if isinstance(verdict, No):
            raise Fault(verdict.reason)
        return KernelWork(step.backend.name, str(place.folder), place.source_key, step.operands)


def _place(step: Ordered) -> tuple[str, str]:
    return step.backend.name, step.source.key


def ordered(
    backend: Backend, kernel: Kernel, config: Config | None, operands: tuple[Operand, ...]
) -> Ordered | None:
    """A launch in one configuration; None, with a line in the log, where the backend cannot emit it."""
    try:
        return Ordered(backend, backend.emit(kernel, config), operands, kernel, config)
    except Exception as error:
        _log.info("backend %r cannot emit %s with %s: %s", backend.name, kernel.name, config, error)
        return None
