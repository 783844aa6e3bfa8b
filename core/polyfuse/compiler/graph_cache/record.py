"""What is stored of a compiled graph, how it becomes something to call again, and a form of it that holds its
kernels.

A record names its kernels by their addresses in the kernel store. Where one of them is gone, or its backend
describes itself in other words by now, the record cannot be used.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from polyfuse.base.digest import digest, stable_json
from polyfuse.base.errors import CacheError
from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings, option_infos
from polyfuse.checking.first import FirstLaunch
from polyfuse.compiler.packages.kernels import GeneratedFrom, Unpacked
from polyfuse.compiler.session import CompileSession, session_for
from polyfuse.runtime.checks import spared
from polyfuse.runtime.frozen import FrozenProgram, FrozenValues, PackedInputs
from polyfuse.runtime.module import CompiledModule, KernelEntry, load
from polyfuse.runtime.subgraphs import Layout, Subgraph

if TYPE_CHECKING:
    from polyfuse.cache import KernelStore, Located
    from polyfuse.checking.calls import Origins
    from polyfuse.compiler.guarding import Guard
    from polyfuse.compiler.native_host import NativeHost
    from polyfuse.compiler.reports.report import GraphReport
    from polyfuse.compiler.sizes.stored import SizedRecord
    from polyfuse.frontend.graph import BoxedCallable
    from polyfuse.plugin import Backend, HostProgram
    from polyfuse.runtime.ranks.agreement import Agreement
    from polyfuse.runtime.ranks.collectives import CollectiveRow

_log = get_logger("cache")


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
    kernel: KernelRecord


@dataclass(frozen=True)
class CalledRecord:
    """A compiled function that the program gives to an operator, such as a branch of a condition.

    Attributes:
        graph: the function itself.
        layouts, single, name: as those of `Subgraph`.
    """

    graph: GraphRecord
    layouts: tuple[Layout, ...]
    single: bool
    name: str


@dataclass(frozen=True)
class GraphRecord:
    """What is stored of one compiled graph.

    Attributes:
        text: the host program.
        kernels: by their names in the program.
        constants: tensors that the program reads, and what plugins have it call, by their keys.
        report: what the compiler did.
        donated: positions of inputs that it may overwrite, for nobody needs them after a backward.
        host: the program in its native form, if it has one.
        sources: what kernels were generated from, packed: only one that fails or is checked needs it.
        settings: the options.
        collectives: that the program starts, in their order.
        sized: the graph of all sizes, where it has programs for classes of them.
        called: functions that the program gives to operators, by their keys.
        frozen: computes its last inputs from parameters, once for each set of them; None: it has no such.
        packed: inputs that it takes behind those of its graph; None: there are none.
        code: the byte code of the host program.
        written: what calls of kernels that plugins wrote by hand come from.
    """

    text: str
    kernels: Mapping[str, KernelRecord]
    constants: Mapping[str, object]
    report: GraphReport
    donated: tuple[int, ...] = ()
    host: HostRecord | None = None
    sources: bytes = b""
    settings: Settings = field(default_factory=Settings)
    collectives: tuple[CollectiveRow, ...] = ()
    sized: SizedRecord | None = None
    called: Mapping[str, CalledRecord] = field(default_factory=dict)
    frozen: FrozenValues | None = None
    packed: PackedInputs | None = None
    code: bytes = b""
    written: Origins = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where its kernels and its host program, those of programs for other sizes and of functions that it
        calls, lie in a kernel store.
        """
        host = () if self.host is None else (self.host.kernel.key,)
        others = () if self.sized is None else self.sized.programs.values()
        graphs = (*others, *(item.graph for item in self.called.values()))
        further = (key for item in graphs if isinstance(item, GraphRecord) for key in item.addresses)
        return (*(kernel.key for kernel in self.kernels.values()), *host, *further)

    def portable(self) -> PortableGraph:
        """The record with what its kernels were built to, once that is done.

        Raises:
            CacheError: a kernel of it is not in the store.
        """
        from polyfuse.cache.archive import pack
        from polyfuse.cache.artifacts import Artifact

        session = session_for(self.settings)
        session.pool.wait_until_idle()
        record = self
        if self.host is not None and session.store.find(self.host.kernel.key) is None:
            record = replace(self, host=None)  # its Python program does the same
        locations = [session.store.find(key) for key in record.addresses]
        if None in locations:
            raise CacheError("a kernel of the graph was not built", "run the compiled function before")
        folders = dict.fromkeys(location.folder for location in locations if location is not None)
        stream = io.BytesIO()
        roots = {folder.parents[2]: None for folder in folders}
        if len(roots) > 1:
            raise CacheError("kernels of the graph lie in several folders", "name a writable `cache_dir`")
        for root in roots:
            pack(root, (Artifact("kernels", folder, 0, 0.0) for folder in folders), stream)
        return PortableGraph(record, stream.getvalue())

    def revive(self) -> BoxedCallable:
        """What can be called, by the session of its options in this process."""
        return revived(self, session_for(_here(self.settings)), build=True)[0]


@dataclass(frozen=True)
class PortableGraph:
    """A record together with what its kernels were built to: enough for a process that finds nothing in its
    cache folder.

    Attributes:
        record: the graph.
        units: an archive of the units that hold its kernels.
    """

    record: GraphRecord
    units: bytes

    def portable(self) -> PortableGraph:
        """It is."""
        return self

    def unpack(self, store: KernelStore) -> GraphRecord:
        """Add the kernels to a store, where they are not there, and return the graph."""
        from polyfuse.cache.archive import unpack

        if self.units and any(store.find(key) is None for key in self.record.addresses):
            unpack(store.root, io.BytesIO(self.units), store.add, kinds=("kernels",))
        return self.record

    def revive(self) -> BoxedCallable:
        """What can be called, by the session of its options in this process."""
        session = session_for(_here(self.record.settings))
        return revived(self.unpack(session.store), session, build=True)[0]


def revived(
    stored: GraphRecord, session: CompileSession, *, build: bool = False, agreement: Agreement | None = None
) -> tuple[BoxedCallable, GraphReport]:
    """A stored graph as something that can be called, and its report.

    Args:
        build: generate kernels again that are not there, or not as they were: nobody compiles the graph
            instead.
        agreement: the check with other processes before it runs for the first time.

    Raises:
        CacheEntryGone: something that it needs is not there, or not as it was.
    """
    from polyfuse.torch_compat.tracing.aot_cache import CacheEntryGone

    start = time.perf_counter()
    try:
        reading = _Reading(session)
        session.store.fetch(stored.addresses)
        made = Unpacked(stored.sources)
        kernels = {
            name: reading.kernel_of(partial(made.get, name), kernel, stored.report, build=build)
            for name, kernel in stored.kernels.items()
        }
        objects: dict[str, object] = dict(stored.constants)
        for key, called in stored.called.items():
            run, _ = revived(called.graph, session, build=build)
            objects[key] = Subgraph(run, called.layouts, called.single, called.name)
        callable_objects = session.checked_calls(objects, stored.written) if stored.written else objects
        module = load(stored.text, kernels, callable_objects, code=stored.code)
        module.collectives, module.agreement = stored.collectives, agreement
        module.packed_inputs = stored.packed
        if stored.host is not None and session.settings.check == "off" and not reading.rebuilt:
            module.native = reading.host(stored.host, stored.kernels)
        if stored.sized is not None:

            def further(record: GraphRecord) -> CompiledModule:
                return cast(CompiledModule, revived(record, session, build=True)[0])

            module.sized = stored.sized.chosen(module, objects, session, further)
    except Exception as error:
        raise CacheEntryGone(str(error)) from error
    seconds = time.perf_counter() - start
    report = replace(
        stored.report,
        compile_seconds=seconds,
        stage_seconds=(("read", seconds),),
        recording=module.graph_status,
        sizes=None if module.sized is None else module.sized.status,
        host=stored.report.host if module.native is None else module.native.status,
        cached=True,
    )
    if stored.frozen is not None:
        return FrozenProgram(module, stored.frozen, stored.frozen.sources), report
    return partial(spared, module, donated=stored.donated) if stored.donated else module, report


class _Reading:
    """Loads kernels of stored graphs; what a backend says of itself is asked once."""

    def __init__(self, session: CompileSession) -> None:
        self._session = session
        self._facts: dict[str, str] = {}
        self.rebuilt = 0

    def kernel_of(
        self, made: Callable[[], GeneratedFrom], record: KernelRecord, report: GraphReport, *, build: bool
    ) -> KernelEntry:
        """A kernel that was built before, with what is done where it fails; or built again, if need be."""
        try:
            return self.checked(made, record, self.kernel(record), report)
        except Exception as error:
            if not build:
                raise
            _log.info("a kernel that was built elsewhere is generated again: %s", error)
        from polyfuse.compiler.guarding import Guard, called_alike, interpreted, replacements

        self.rebuilt += 1
        what, session = made(), self._session
        backends = partial(session.backends, what.kernel.device)
        note = partial(report.note_provider, what.kernel.name)
        for built, source, launch in replacements(what.kernel, (), session, backends()):
            alike = called_alike(what.kernel, source, launch)
            return Guard(built, session, backends, note).around(alike)
        note("an interpreter", "no backend could build it here")
        return interpreted(what.kernel)

    def checked(
        self,
        made: Callable[[], GeneratedFrom],
        record: KernelRecord,
        kernel: KernelEntry,
        report: GraphReport,
    ) -> KernelEntry:
        """A kernel that was built before, checked if that was asked for, and replaced where it fails."""
        session = self._session
        if not callable(kernel):
            return kernel
        backend = session.plugins.backend(record.backend)

        def guard() -> Guard:  # imports what generates kernels, which most processes do without
            from polyfuse.compiler.guarding import BuiltKernel, Guard

            what = made()
            built = BuiltKernel(what.kernel, what.name, backend, record.key, what.config)
            note = partial(report.note_provider, what.kernel.name)
            return Guard(built, session, partial(session.backends, what.kernel.device), note)

        if session.settings.check != "off":
            return guard().around(kernel)
        # what it was generated from is read only if it fails
        return FirstLaunch(
            lambda: made().kernel, kernel, backend.synchronize, lambda error: guard().failed(error)
        )

    def host(self, host: HostRecord, kernels: Mapping[str, KernelRecord]) -> NativeHost:
        """A native host program that was built before."""
        from polyfuse.compiler.native_host import NativeHost
        from polyfuse.runtime.native_program import HostStatus, Opener

        opener = self.kernel(host.kernel)

        def folder(name: str) -> Path | None:
            found = self._session.store.find(kernels[name].key)
            return None if found is None else found.folder

        return NativeHost(HostStatus(host.kernel.backend), host.program, lambda: cast(Opener, opener), folder)

    def kernel(self, record: KernelRecord) -> KernelEntry:
        """A kernel that was built before."""
        session, facts = self._session, self._facts
        backend = session.plugins.backend(record.backend)
        if backend.name not in facts:
            facts[backend.name] = facts_of(backend)
        if facts[backend.name] != record.facts:
            raise LookupError(f"backend {backend.name!r} is not as it was")
        found: Located | None = session.store.find(record.key)
        if found is None:
            raise LookupError(f"a kernel of backend {backend.name!r} is gone")
        if session.is_barred(backend, record.key):
            raise LookupError(f"a kernel of backend {backend.name!r} is barred")
        answer = backend.review(found.folder, found.source_key)
        if not answer:
            raise LookupError(f"a kernel of backend {backend.name!r} is not as it should be: {answer}")
        return session.pool.load_stored(backend, found)


def facts_of(backend: Backend) -> str:
    """Digest of what a backend says of itself and of its machine."""
    return digest(stable_json(dict(backend.describe())), stable_json(dict(backend.machine())))


def _here(settings: Settings) -> Settings:
    """Options of another process, with this one's folders and watching."""
    infos = option_infos()
    names = [item.name for item in fields(settings) if infos[item.name].affects_code]
    changed = {name: getattr(settings, name) for name in names if name != "plugin_options"}
    return replace(Settings.resolve(), plugin_options=settings.plugin_options, **changed)
