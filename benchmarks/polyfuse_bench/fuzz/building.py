"""Sessions for many small graphs: kernels in configurations drawn at random, built many at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelBuildError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore, kernel_key
from polyfuse.compiler.session import CompileSession
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Config, PluginManager, Source
from polyfuse.workers import BuildFuture, BuildPool
from polyfuse.workers.future import Location

__all__ = ["Choice", "DeferredPool", "Sessions"]

# In characters of source.
_UNIT = 120_000


class DeferredPool(BuildPool):
    """Builds nothing until a kernel is needed, and then all that was submitted until then, in few units."""

    def __init__(self, settings: Settings, key_facts: Sequence[str] = ()) -> None:
        super().__init__(settings, key_facts)
        self._waiting: dict[str, tuple[Backend, dict[str, Source], KernelStore]] = {}
        self._promised: dict[tuple[str, str], Future[Mapping[str, Location]]] = {}
        self.kernels: dict[str, int] = {}

    def submit(self, backend: Backend, sources: Sequence[Source], store: KernelStore) -> BuildFuture:
        """Note what is to be built."""
        units: dict[str, Future[Mapping[str, Location]]] = {}
        for source in sources:
            slot = (backend.name, source.key)
            if slot not in self._promised:
                self._promised[slot] = _Promise(self.flush)
                waiting = self._waiting.setdefault(backend.name, (backend, {}, store))
                waiting[1][source.key] = source
            units[source.key] = self._promised[slot]
        by_key = {source.key: source for source in sources}
        cache_keys = {key: kernel_key(key, backend.name, {}, ()) for key in by_key}
        return BuildFuture(units, partial(self._load, backend, by_key, cache_keys, store))

    def flush(self) -> None:
        """Build what waits."""
        waiting, self._waiting = self._waiting, {}
        for name, (backend, sources, store) in waiting.items():
            self.kernels[name] = self.kernels.get(name, 0) + len(sources)
            for unit in _units(list(sources.values()), backend.min_unit):
                keys = {s.key: kernel_key(s.key, backend.name, {}, ()) for s in unit}
                locations = self._build_unit(backend, unit, keys, store)
                for key in keys:
                    self._promised[name, key].set_result(locations)

    def _build(self, backend: Backend, sources: Sequence[Source], folder: Path) -> None:
        # in this process, of which there is one for each core: not in a worker of its own
        try:
            backend.build(sources, folder)
        except KernelBuildError:
            raise
        except Exception as error:
            cause = f"backend {backend.name!r} raised {type(error).__name__} while building: {error}"
            raise KernelBuildError(cause, "report it to the backend's author") from error

    def forget(self) -> None:
        """Drop what was built: the programs that used it are done."""
        self._promised.clear()
        self._loaded.clear()


class _Promise(Future[Mapping[str, Location]]):
    """Builds when it is asked."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__()
        self._flush = flush

    def result(self, timeout: float | None = None) -> Mapping[str, Location]:
        if not self.done():
            self._flush()
        return super().result(timeout)


def _units(sources: Sequence[Source], least: int) -> list[list[Source]]:
    """Sources in the order given, as many together as one compiler should get."""
    if least <= 1:
        return [[source] for source in sources]
    units: list[list[Source]] = [[]]
    size = 0
    for source in sources:
        if units[-1] and size + len(source.text) > _UNIT:
            units.append([])
            size = 0
        units[-1].append(source)
        size += len(source.text)
    return units


class Choice:
    """A configuration for each kernel: the first, any other of its backend's, or one that lies around it.

    Attributes:
        chosen: what was drawn for each kernel of the program, in turn; None for the backend's first one.
    """

    def __init__(self, seed: int, usual: float = 0.25) -> None:
        self.random = random.Random(seed)
        self.usual = usual
        self.chosen: list[Config | None] = []

    def __call__(self, backend: Backend, kernel: Kernel) -> Config | None:
        found = None if self.random.random() < self.usual else self._drawn(backend, kernel)
        self.chosen.append(found)
        return found

    def _drawn(self, backend: Backend, kernel: Kernel) -> Config | None:
        configs = list(backend.configs(kernel))
        if not configs:
            return None
        found = self.random.choice(configs)
        for _ in range(self.random.choice((0, 0, 1, 2))):
            around = list(backend.neighbours(kernel, found))
            if around:
                found = self.random.choice(around)
        try:
            backend.emit(kernel, found)
        except UnsupportedError:  # as in a search, which passes over it
            return None
        return found


class Fixed(Choice):
    """Configurations that are given, by the number of the kernel."""

    def __init__(self, configs: Sequence[Mapping[str, int] | None]) -> None:
        super().__init__(0)
        self.configs = configs

    def __call__(self, backend: Backend, kernel: Kernel) -> Config | None:
        given = self.configs[len(self.chosen)] if len(self.chosen) < len(self.configs) else None
        self.chosen.append(None if given is None else Config(tuple(given.items())))
        return self.chosen[-1]


class Sessions:
    """A session for each set of options, all with one pool and one choice of configurations.

    What the backend refuses, the interpreter takes.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.backends = tuple(dict.fromkeys((backend, "interpreter")))
        self.pool = DeferredPool(self._settings({}))
        self.choice: Choice = Fixed(())
        self._sessions: dict[str, CompileSession] = {}

    def _settings(self, options: Mapping[str, Any]) -> Settings:
        base: dict[str, Any] = {
            "backends": self.backends,
            "strict": True,
            "cache": False,
            "graph_cache": False,
            "build_workers": 1,
            "deterministic": "off",
        }
        return Settings.resolve(None, {**base, **options})

    def get(self, options: Mapping[str, Any]) -> CompileSession:
        """The session of some options."""
        key = repr(sorted(options.items()))
        if key not in self._sessions:
            settings = self._settings(options)
            plugins = PluginManager(settings)
            store = KernelStore.temporary()
            self._sessions[key] = CompileSession(
                settings, plugins, self.pool, store, (), lambda b, k: self.choice(b, k)
            )
        return self._sessions[key]
