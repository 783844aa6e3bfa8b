"""The graph cache: what is stored of a compiled graph, when it is found again, when it bypasses the cache.

A graph is looked up before it is traced, by what Dynamo captured (`frontend/captured.py`), so that a process
that finds it neither traces nor compiles: AOTAutograd's wrappers are read together with a `GraphRecord` for
the forward and one for the backward. A record names its kernels by their addresses in the kernel store. Where
one of them is gone, or its backend describes itself in other words by now, the entry is dropped and the graph
compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from polyfuse.base.code import code_digest
from polyfuse.base.digest import digest, stable_json
from polyfuse.base.log import get_logger, warn_once
from polyfuse.base.settings import Settings
from polyfuse.cache import GraphFolder, Located, compiled_key
from polyfuse.cache.graphs import count
from polyfuse.cache.limit import trim_if_due
from polyfuse.checking.first import FirstLaunch
from polyfuse.compiler.guarding import BuiltKernel, Guard, is_barred
from polyfuse.compiler.native_host import NativeHost
from polyfuse.compiler.packages.kernels import GeneratedFrom, Unpacked, packed
from polyfuse.compiler.reports.report import GraphReport, record
from polyfuse.compiler.session import CompileSession
from polyfuse.frontend.captured import CacheBypass, captured_text
from polyfuse.frontend.graph import AtenGraph, BoxedCallable
from polyfuse.plugin import Backend, HostProgram
from polyfuse.plugin.inventory import inventory
from polyfuse.runtime.checks import spared
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.module import CompiledModule, KernelEntry, load
from polyfuse.runtime.native_program import HostStatus, Opener
from polyfuse.torch_compat.tracing import global_state
from polyfuse.torch_compat.tracing.aot import cache_record

if TYPE_CHECKING:
    from polyfuse.compiler.kernels import PendingKernel
    from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry

__all__ = ["GraphCache", "GraphRecord", "KernelRecord", "record_of"]

_log = get_logger("cache")

# Among the kernels of a graph, its host program: no kernel has an empty name.
_HOST = ""

# Larger constants are not copied into an entry.
_CONSTANT_BYTES = 1 << 20


@dataclass(frozen=True)
class KernelRecord:
    """Where a kernel lies.

    Attributes:
        backend: who loads it.
        facts: digest of what that backend said of itself.
        key, source_key: its addresses in the store and in its unit.
    """

    backend: str
    facts: str
    key: str
    source_key: str


@dataclass(frozen=True)
class HostRecord:
    """A native host program, and where it lies."""

    program: HostProgram
    place: KernelRecord


@dataclass(frozen=True)
class GraphRecord:
    """What is stored of one compiled graph.

    Attributes:
        text: the host program.
        kernels: by their names in the program.
        constants: tensors that the program reads, by their keys.
        report: what the compiler did.
        donated: positions of inputs that it may overwrite, for nobody needs them after a backward.
        host: the program in its native form, if it has one.
        sources: what kernels were generated from, packed: only one that fails or is checked needs it.
    """

    text: str
    kernels: Mapping[str, KernelRecord]
    constants: Mapping[str, torch.Tensor]
    report: GraphReport
    donated: tuple[int, ...] = ()
    host: HostRecord | None = None
    sources: bytes = b""


def record_of(
    aten: AtenGraph,
    module: CompiledModule,
    kernels: Mapping[str, PendingKernel],
    objects: Mapping[str, Any],
    report: GraphReport,
    session: CompileSession,
) -> GraphRecord | str:
    """What is stored of a compiled graph, or why it cannot be."""
    constants = {key: objects[key] for key in module.namespace["OBJECTS"].values()}
    for value in constants.values():
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.requires_grad:
            return f"its program refers to a {type(value).__name__}"
    if sum(value.nbytes for value in constants.values()) > _CONSTANT_BYTES:
        return "its constants are large"
    sources = {name: (kernel.emitted.backend, kernel.emitted.source) for name, kernel in kernels.items()}
    native = module.native if isinstance(module.native, NativeHost) else None
    if native is not None and native.backend is not None and native.source is not None:
        sources[_HOST] = native.backend, native.source
    try:
        backends = {backend.name: backend for backend, _ in sources.values()}
        facts = {name: _facts(backend) for name, backend in backends.items()}
        places = {
            name: KernelRecord(
                backend.name, facts[backend.name], session.pool.address(backend, source), source.key
            )
            for name, (backend, source) in sources.items()
        }
    except Exception as error:
        return f"a backend cannot describe itself ({type(error).__name__})"
    donated = tuple(item.index for item in aten.inputs if item.donated)
    place = places.pop(_HOST, None)
    host = HostRecord(native.program, place) if native is not None and place is not None else None
    made = packed({name: kernel.built for name, kernel in kernels.items()})
    report = replace(report, recording=None)
    return GraphRecord(module.text, places, constants, report, donated, host, made)


class GraphCache:
    """Looks up one captured graph, and counts what became of that."""

    def __init__(self, session: CompileSession) -> None:
        self._session = session
        self._folder = GraphFolder(session.store.root)
        self._key = ""
        self._refusal = ""
        self._revived: list[GraphReport] = []
        self._compiled = 0

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> GraphCacheEntry | None:
        """How a captured graph is looked up and stored; None where it is not."""
        if not self._session.settings.graph_cache:
            return None
        try:
            self._key = self._address(gm, example_inputs)
            from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry, entry_name

            also = self._session.store.also
            if also is not None and not self._folder.holds(self._key):
                self._folder.adopt(self._key, also, entry_name)
            self._folder.mend(self._key, entry_name)
            sharing = self._session.store.sharing
            if sharing is not None and not self._folder.holds(self._key):
                sharing.fetch_graph(self._key)
                self._folder.mend(self._key, entry_name)
        except CacheBypass as error:
            self._refusal = str(error)
            return None
        except Exception as error:  # whatever it is, the graph can be compiled
            _log.debug("a graph has no key", exc_info=True)
            self._key, self._refusal = "", f"its key cannot be computed ({type(error).__name__})"
            return None
        return GraphCacheEntry(self._key, self._folder.path, self._revive, self._stored)

    @property
    def may_hit(self) -> bool:
        """Whether there is something under the key of the graph."""
        return bool(self._key) and self._folder.holds(self._key)

    def note(self, compiled: BoxedCallable) -> None:
        """Take note of a graph that was compiled, since nothing was found."""
        self._compiled += 1
        if not self._key:
            return
        record = cache_record(compiled)
        if isinstance(record, str):
            self._refusal = self._refusal or record

    def settle(self) -> None:
        """Count what became of the graph, and report what was found."""
        if not self._session.settings.graph_cache:
            return
        if self._key and not self._compiled:
            count("hit")
            for report in self._revived:
                record(report)
                self._session.observe(report.decisions)
        elif self._key:
            count("miss")
        elif self._refusal:
            self._bypass()

    def _bypass(self) -> None:
        _log.info("a graph bypasses the graph cache: %s", self._refusal)
        count("bypass", self._refusal)

    def _stored(self) -> None:
        """Count what became of storing a graph that was not found."""
        if self._refusal:
            self._bypass()
        elif not self._folder.holds(self._key):
            count("error")
            warn_once(
                "cache",
                f"compiled graphs cannot be written to {self._folder.path}; free space, or name another"
                " folder with the option `cache_dir`",
            )
        else:
            store = self._session.store
            if store.sharing is not None:
                store.sharing.give_graph(self._key)
            trim_if_due(store.root, store.limit)

    def _address(self, gm: Any, example_inputs: Sequence[Any]) -> str:
        session = self._session
        refused = _bypassed_by(session.settings)
        if refused:
            raise CacheBypass(refused)
        code = partial(code_digest, memory=session.store.root / "code")
        plugins = inventory(session.plugins, code)
        if session.key_facts is None or plugins is None:
            raise CacheBypass("a plugin does not say what its results depend on, or its files changed")
        text = captured_text(gm, example_inputs)
        from polyfuse.torch_compat.tracing.aot_cache import bypass_reason

        refused = bypass_reason(gm)
        if refused:
            raise CacheBypass(refused)
        own = code("polyfuse")
        if not own:
            raise CacheBypass("the compiler's own files changed since it was loaded")
        devices = (f"{kind} {sorted(device_of(kind).switches().items())}" for kind in session.device_types())
        environment = (*global_state.switches(), *devices, *plugins, *session.key_facts, own)
        return compiled_key(text, environment, session.settings.fingerprint())

    def _revive(self, stored: GraphRecord) -> BoxedCallable:
        """A stored graph as something that can be called."""
        from polyfuse.torch_compat.tracing.aot_cache import CacheEntryGone

        start = time.perf_counter()
        try:
            facts: dict[str, str] = {}
            host = () if stored.host is None else (stored.host.place,)
            self._session.store.fetch([place.key for place in (*stored.kernels.values(), *host)])
            made = Unpacked(stored.sources)
            kernels = {
                name: self._checked(partial(made.get, name), place, self._kernel(place, facts), stored.report)
                for name, place in stored.kernels.items()
            }
            module = load(stored.text, kernels, stored.constants)
            if stored.host is not None and self._session.settings.check == "off":
                module.native = self._host(stored.host, stored.kernels, facts)
        except Exception as error:
            self._folder.drop(self._key)
            _log.info("a cached graph cannot be used: %s", error)
            raise CacheEntryGone(str(error)) from error
        seconds = time.perf_counter() - start
        report = replace(
            stored.report,
            compile_seconds=seconds,
            stage_seconds=(("read", seconds),),
            recording=module.graph_status,
            host=stored.report.host if module.native is None else module.native.status,
            cached=True,
        )
        self._revived.append(report)
        return partial(spared, module, donated=stored.donated) if stored.donated else module

    def _checked(
        self,
        made: Callable[[], GeneratedFrom],
        place: KernelRecord,
        kernel: KernelEntry,
        report: GraphReport,
    ) -> KernelEntry:
        """A kernel that was built before, checked if that was asked for, and replaced where it fails."""
        session = self._session
        if not callable(kernel):
            return kernel
        backend = session.plugins.backend(place.backend)

        def guard() -> Guard:
            what = made()
            built = BuiltKernel(what.kernel, what.name, backend, place.key, what.config, what.scratch)
            note = partial(report.note_provider, what.kernel.name)
            return Guard(built, session, partial(session.backends, what.kernel.device), note)

        if session.settings.check != "off":
            return guard().around(kernel)
        # what it was generated from is read only if it fails
        return FirstLaunch(
            lambda: made().kernel, kernel, backend.synchronize, lambda error: guard().failed(error)
        )

    def _host(
        self, host: HostRecord, kernels: Mapping[str, KernelRecord], facts: dict[str, str]
    ) -> NativeHost:
        """A native host program that was built before."""
        opener = self._kernel(host.place, facts)

        def folder(name: str) -> Path | None:
            found = self._session.store.find(kernels[name].key)
            return None if found is None else found.folder

        return NativeHost(HostStatus(host.place.backend), host.program, lambda: cast(Opener, opener), folder)

    def _kernel(self, place: KernelRecord, facts: dict[str, str]) -> KernelEntry:
        session = self._session
        backend = session.plugins.backend(place.backend)
        if backend.name not in facts:
            facts[backend.name] = _facts(backend)
        if facts[backend.name] != place.facts:
            raise LookupError(f"backend {backend.name!r} is not as it was")
        found: Located | None = session.store.find(place.key)
        if found is None:
            raise LookupError(f"a kernel of backend {backend.name!r} is gone")
        if is_barred(session, backend, place.key):
            raise LookupError(f"a kernel of backend {backend.name!r} is barred")
        answer = backend.review(found.folder, found.source_key)
        if not answer:
            raise LookupError(f"a kernel of backend {backend.name!r} is not as it should be: {answer}")
        return session.pool.load_stored(backend, found)


def _facts(backend: Backend) -> str:
    return digest(stable_json(dict(backend.describe())), stable_json(dict(backend.machine())))


def _bypassed_by(settings: Settings) -> str:
    """Why graphs bypass the cache with these options; empty if they do not."""
    asked = {
        "cache": not settings.cache,
        "freezing": settings.freezing,
        "fuel": settings.fuel is not None,
        "dump": bool(settings.dump),
        "profile": settings.profile,
        "benchmark_harness": settings.benchmark_harness,
        "benchmark_fusion": settings.benchmark_fusion,
    }
    names = [name for name, on in asked.items() if on]
    if settings.autotunes:
        return "autotuning may go on in a later process"
    return f"the option {names[0]!r} is set" if names else ""
