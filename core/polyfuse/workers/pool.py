"""The build pool: sources in, launchables out, every CPU busy in between."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polyfuse.base.errors import (
    CacheError,
    KernelBuildError,
    KernelLoadError,
    PolyfuseError,
    UnsupportedError,
)
from polyfuse.base.files import is_out_of_space
from polyfuse.base.log import get_logger
from polyfuse.base.process import ForkedLock
from polyfuse.base.text import brief
from polyfuse.cache import KernelStore, Located, kernel_key
from polyfuse.workers.future import BuildFuture, Location
from polyfuse.workers.process import WorkerProcesses

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin import Backend, Launchable, Source


_log = get_logger("workers")

# Units that stay loaded for whoever asks for a kernel of them next.
_REMEMBERED: Final = 128

_Unit = Future[Mapping[str, Location]]

# In characters of source: above it, units are no longer balanced well among CPUs.
MAX_UNIT: Final = 160_000


class BuildPool:
    """Builds kernels in parallel and keeps them in a store. Safe to use from several threads.

    Backends whose `build` waits for a compiler run in threads; the others name a function in `worker`, which
    runs in worker processes. A backend that raises or crashes costs its own kernel: an error in the future's
    outcome, never an exception out of `submit`.

    Args:
        key_facts: what plugins add to the keys of what is built.
        code: an address of the code of a backend's plugin, which is part of the key of what it builds.
    """

    def __init__(
        self,
        settings: Settings,
        key_facts: Sequence[str] = (),
        code: Callable[[Backend], str] = lambda backend: "",
    ) -> None:
        self._key_facts = tuple(key_facts)
        self._code = code
        self._workers = settings.build_worker_count()
        self._timeout = float(settings.build_timeout)
        self._lock = ForkedLock(again=True)
        self._start()

    @property
    def workers(self) -> int:
        """How many units are built at once."""
        return self._workers

    def submit(self, backend: Backend, sources: Sequence[Source], store: KernelStore) -> BuildFuture:
        """Start building what the store lacks, and return at once.

        Kernels that another caller is building right now are not built twice.
        """
        by_key = {source.key: source for source in sources}
        try:
            facts, added = backend.describe(), self._added(backend)
        except Exception as error:
            failure = _as_build_error(backend, error, "in its method `describe`")
            return BuildFuture(dict.fromkeys(by_key, _finished(dict.fromkeys(by_key, failure))), _no_load)
        cache_keys = {key: kernel_key(key, backend.name, facts, added) for key in by_key}
        store.fetch(list(cache_keys.values()))
        with self._lock:
            self._restart_after_fork()
            units = self._pending_or_stored(by_key, cache_keys, store)
            missing = [source for key, source in by_key.items() if key not in units]
            self._built += len(missing)
            self._found += len(units)
            for chunk in divide(missing, self._workers, backend.min_unit):
                names = {source.key: cache_keys[source.key] for source in chunk}
                future = self._threads.submit(self._build_unit, backend, chunk, names, store)
                for key in names:
                    self._pending[cache_keys[key]] = future
                    units[key] = future
                future.add_done_callback(partial(self._forget_pending, tuple(names.values())))
        ordered = {key: units[key] for key in by_key}
        load = partial(self._load, backend, by_key, cache_keys, store)
        return BuildFuture(ordered, load, partial(self.submit, backend, sources, store))

    def prepare(self, backend: Backend, kernels: int) -> None:
        """Start workers for about as many kernels as will soon be submitted, and return at once.

        Starting one takes as long as building a few kernels, which passes while the graph is still lowered.
        Where everything so far was found in the store, a single one is started.
        """
        if not backend.worker or not backend.worker_start or backend.spawns_compiler:
            return
        with self._lock:
            self._restart_after_fork()
            most = 1 if self._found and not self._built else self._workers
            wanted = min(most, kernels) - self._prepared
            self._prepared += max(0, wanted)
            for _ in range(wanted):
                self._threads.submit(self._start_worker, backend)

    def address(self, backend: Backend, source: Source) -> str:
        """The key under which a store keeps what is built from a source."""
        return kernel_key(source.key, backend.name, backend.describe(), self._added(backend))

    def load_stored(self, backend: Backend, location: Located) -> Launchable:
        """Load a kernel that a store holds, or raise what its backend raises."""
        return self._load_unit(backend, location)

    def wait_until_idle(self) -> None:
        """Wait for all builds under way, whoever asked for them: they would disturb measurements."""
        with self._lock:
            self._restart_after_fork()
            pending = list(self._pending.values())
        wait(pending, timeout=self._timeout)

    def close(self) -> None:
        """Wait for running builds, and end the workers."""
        self._threads.shutdown(wait=True)
        self._processes.close()

    def __enter__(self) -> BuildPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _added(self, backend: Backend) -> tuple[str, ...]:
        """What a key holds besides the source and what the backend says of itself."""
        code = self._code(backend)
        return (*self._key_facts, code) if code else self._key_facts

    # Building.

    def _start_worker(self, backend: Backend) -> None:
        try:
            self._processes.start(backend.worker_start, backend.worker_options())
        except Exception as error:
            _log.info("a build worker could not be started: %s", error)

    def _start(self) -> None:
        self._process_id = os.getpid()
        self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="polyfuse-build")
        self._processes = WorkerProcesses()
        self._pending: dict[str, _Unit] = {}
        self._prepared = self._found = self._built = 0
        self._loaded: dict[tuple[str, Path], Mapping[str, Launchable]] = {}

    def _restart_after_fork(self) -> None:
        # Threads do not survive a fork, and the children belong to the parent.
        if self._process_id != os.getpid():
            self._start()

    def _pending_or_stored(
        self, sources: Mapping[str, Source], cache_keys: Mapping[str, str], store: KernelStore
    ) -> dict[str, _Unit]:
        units: dict[str, _Unit] = {}
        for key in sources:
            pending = self._pending.get(cache_keys[key])
            if pending is not None:
                units[key] = pending
                continue
            location = store.find(cache_keys[key])
            if location is not None:
                units[key] = _finished({key: location})
        return units

    def _forget_pending(self, keys: Sequence[str], _: _Unit) -> None:
        with self._lock:
            for key in keys:
                self._pending.pop(key, None)

    def _build_unit(
        self, backend: Backend, sources: Sequence[Source], cache_keys: Mapping[str, str], store: KernelStore
    ) -> Mapping[str, Location]:
        found = self._attempt(backend, sources, cache_keys, store)
        if isinstance(found, Mapping):
            return found
        late = isinstance(found, KernelBuildError) and found.timed_out
        if len(sources) == 1 or late:
            return dict.fromkeys((source.key for source in sources), found)
        _log.info("a unit of %d kernels failed, its halves are built: %s", len(sources), found.cause)
        return self._build_halves(backend, sources, cache_keys, store)

    def _build_halves(
        self, backend: Backend, sources: Sequence[Source], cache_keys: Mapping[str, str], store: KernelStore
    ) -> Mapping[str, Location]:
        """Build what cannot be built together in halves, and again the half that fails: most often one kernel
        is to blame. Each is built alone where both fail.
        """
        middle = len(sources) // 2
        halves = (sources[:middle], sources[middle:])
        found = [self._attempt(backend, half, cache_keys, store) for half in halves]
        both = not any(isinstance(item, Mapping) for item in found)
        built: dict[str, Location] = {}
        for half, item in zip(halves, found, strict=True):
            if isinstance(item, Mapping):
                built.update(item)
            elif len(half) == 1:
                built[half[0].key] = item
            elif both:
                for source in half:
                    built.update(self._build_unit(backend, (source,), cache_keys, store))
            else:
                built.update(self._build_halves(backend, half, cache_keys, store))
        return built

    def _attempt(
        self, backend: Backend, sources: Sequence[Source], cache_keys: Mapping[str, str], store: KernelStore
    ) -> Mapping[str, Location] | KernelBuildError | UnsupportedError:
        """Build kernels together: where they are, or what is wrong with one or all of them."""
        try:
            folder = self._add(backend, sources, cache_keys, store)
        except (KernelBuildError, UnsupportedError) as error:
            return error
        except PolyfuseError as error:
            return {source.key: error for source in sources}
        except Exception as error:
            failure = _as_build_error(backend, error, "when what it built was stored")
            return {source.key: failure for source in sources}
        return {source.key: Located(folder, source.key) for source in sources}

    def _add(
        self, backend: Backend, sources: Sequence[Source], cache_keys: Mapping[str, str], store: KernelStore
    ) -> Path:
        kernels = {cache_keys[source.key]: source.key for source in sources}
        build = partial(self._build, backend, sources)
        if not store.moved:
            try:
                return store.add(kernels, build)
            except KernelBuildError as error:
                if not is_out_of_space(error):
                    raise
                store.move(f"there is no space left in {store.root}; free some")
            except (CacheError, OSError) as error:
                # What the backend raises became a KernelBuildError: this is the store's own trouble.
                store.move(f"the kernel store {store.root} cannot be used ({error}); see to that")
        try:
            return KernelStore.temporary().add(kernels, build)
        except OSError as error:
            raise CacheError(
                f"no folder can be written ({error})", "free space, or set `cache_dir`"
            ) from error

    def _build(self, backend: Backend, sources: Sequence[Source], folder: Path) -> None:
        try:
            if backend.worker and not backend.spawns_compiler:
                options = backend.worker_options()
                self._processes.build(backend.worker, sources, folder, options, self._timeout)
            else:
                backend.build(sources, folder)
        except (KernelBuildError, UnsupportedError):
            raise
        except Exception as error:
            names = ", ".join(source.name for source in sources)
            raise KernelBuildError(
                f"backend {backend.name!r} raised in its method `build` over {names} ({brief(error)})",
                "report it to the backend's author",
                name=sources[0].name,
            ) from error

    # Loading.

    def _load(
        self,
        backend: Backend,
        sources: Mapping[str, Source],
        cache_keys: Mapping[str, str],
        store: KernelStore,
        key: str,
        location: Location,
    ) -> Launchable | PolyfuseError:
        if isinstance(location, PolyfuseError):
            return location
        try:
            return self._load_unit(backend, location)
        except Exception as error:
            _log.info("a stored kernel does not load and is built again: %s", error)
        # The files may be damaged in a way that their sizes do not show, or belong to another system.
        store.discard(location.folder)
        with self._lock:
            self._loaded.pop((backend.name, location.folder), None)
        again = self._build_unit(backend, (sources[key],), cache_keys, store)[key]
        found = self._loaded_from(backend, sources[key], again)
        if isinstance(found, KernelLoadError) and not store.moved:
            # files in a folder that forbids execution do not load, wherever they come from
            again = self._build_unit(backend, (sources[key],), cache_keys, KernelStore.temporary())[key]
            elsewhere = self._loaded_from(backend, sources[key], again)
            if not isinstance(elsewhere, PolyfuseError):
                store.move(f"what is built in {store.root} cannot be loaded from there ({found.cause})")
                return elsewhere
        return found

    def _loaded_from(
        self, backend: Backend, source: Source, location: Location
    ) -> Launchable | PolyfuseError:
        if isinstance(location, PolyfuseError):
            return location
        try:
            return self._load_unit(backend, location)
        except PolyfuseError as error:
            return error
        except Exception as error:
            return KernelLoadError(
                f"kernel {source.name} of backend {backend.name!r} does not load: its method `load` raised "
                f"{brief(error)}",
                "run `polyfuse doctor`",
            )

    def _load_unit(self, backend: Backend, location: Located) -> Launchable:
        with self._lock:
            slot = (backend.name, location.folder)
            if slot not in self._loaded:
                self._loaded[slot] = backend.load(location.folder)
                if len(self._loaded) > _REMEMBERED:
                    # whoever uses its kernels holds them
                    del self._loaded[next(iter(self._loaded))]
            unit = self._loaded[slot]
        if location.source_key not in unit:
            raise KernelLoadError(
                f"{location.folder} lacks kernel {location.source_key}", "it is built again"
            )
        return unit[location.source_key]


def _finished(locations: Mapping[str, Location]) -> _Unit:
    future: _Unit = Future()
    future.set_result(locations)
    return future


def _as_build_error(backend: Backend, error: Exception, doing: str) -> PolyfuseError:
    if isinstance(error, PolyfuseError):
        return error
    return KernelBuildError(
        f"backend {backend.name!r} raised {doing} ({brief(error)})",
        "report it to the backend's author",
    )


def _no_load(key: str, location: Location) -> Launchable | PolyfuseError:
    """For futures that hold errors alone."""
    return (
        location
        if isinstance(location, PolyfuseError)
        else CacheError(f"{key} was not built", "compile again")
    )


def divide(sources: Sequence[Source], workers: int, min_unit: int) -> tuple[tuple[Source, ...], ...]:
    """Divide sources into units of nearly equal size, at most one each for `workers`, or several each where
    they would grow too big. Below `min_unit` characters of source, a unit of its own costs more than it saves
    even when a CPU is idle; where that is 1, every source is a unit of its own.

    Deterministic: the same sources in any order give the same units.
    """
    if not sources:
        return ()
    if min_unit <= 1:
        return tuple((source,) for source in sorted(sources, key=lambda item: (-len(item.text), item.key)))
    total = sum(len(source.text) for source in sources)
    wanted = min(workers, max(1, total // min_unit))
    count = min(len(sources), wanted * -(-total // (wanted * MAX_UNIT)))
    units: list[list[Source]] = [[] for _ in range(count)]
    sizes = [0] * count
    for source in sorted(sources, key=lambda item: (-len(item.text), item.key)):
        lightest = sizes.index(min(sizes))
        units[lightest].append(source)
        sizes[lightest] += len(source.text) + 1
    return tuple(tuple(unit) for unit in units)
