"""Kernels built for a race, all at once before the first is timed."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Builds what entries need, in parallel."""

    def __init__(self, pool: BuildPool, store: KernelStore) -> None:
        self._pool = pool
        self._store = store
        self._futures: dict[tuple[str, str], BuildFuture] = {}

    def begin(self, entries: Sequence[Entry]) -> None:
        """Start to build what these need and was not asked for before."""
        wanted: dict[str, tuple[Backend, dict[str, Source]]] = {}
        for entry in entries:
            for step in entry.steps:
                if isinstance(step, Ordered) and (step.backend.name, step.source.key) not in self._futures:
                    sources = wanted.setdefault(step.backend.name, (step.backend, {}))[1]
                    sources[step.source.key] = step.source
        for name, (backend, sources) in wanted.items():
            future = self._pool.submit(backend, list(sources.values()), self._store)
            self._futures.update({(name, key): future for key in sources})

    def wait(self) -> None:
        """Wait for all builds: they would disturb whoever is timed meanwhile."""
        for future in {id(f): f for f in self._futures.values()}.values():
            future.places()
        self._pool.wait_until_idle()

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
        place = self._futures[step.backend.name, step.source.key].places()[step.source.key]
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


def ordered(
    backend: Backend, kernel: Kernel, config: Config | None, operands: tuple[Operand, ...]
) -> Ordered | None:
    """A launch in one configuration; None, with a line in the log, where the backend cannot emit it."""
    try:
        return Ordered(backend, backend.emit(kernel, config), operands, kernel, config)
    except Exception as error:
        _log.info("backend %r cannot emit %s with %s: %s", backend.name, kernel.name, config, error)
        return None
