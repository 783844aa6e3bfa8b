"""Looks up captured graphs in the graph cache, and says when they bypass it.

A graph is looked up before it is traced, by what Dynamo captured (`frontend/captured.py`), so that a process
that finds it neither traces nor compiles: AOTAutograd's wrappers are read together with a `GraphRecord` for
the forward and one for the backward.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from polyfuse.base.code import code_digest
from polyfuse.base.files import atomic_write
from polyfuse.base.folders import distrusted, process_folder
from polyfuse.base.log import get_logger, warn_once
from polyfuse.cache import GraphFolder, compiled_key
from polyfuse.cache.artifacts import mark_used
from polyfuse.cache.graphs import count
from polyfuse.cache.key_fields import KeyNotes
from polyfuse.cache.limit import trim_if_due
from polyfuse.compiler.captures.pending import note_bypass, note_key
from polyfuse.compiler.graph_cache.record import GraphRecord, PortableGraph, revived
from polyfuse.compiler.reports.logs import publish, texts_are_logged
from polyfuse.distributed.costs import costs_facts
from polyfuse.frontend.captured import CacheBypass, captured_text
from polyfuse.plugin.session.inventory import inventory
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.devices.present import is_present
from polyfuse.torch_compat.groups import group_of, symmetric_groups
from polyfuse.torch_compat.tracing import global_state
from polyfuse.torch_compat.tracing.aot import cache_record, stored_by_torch
from polyfuse.torch_compat.tracing.dynamo import is_bucket

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.compiler.reports.report import GraphReport
    from polyfuse.compiler.session import CompileSession
    from polyfuse.frontend.graph import BoxedCallable
    from polyfuse.runtime.ranks.agreement import Agreement
    from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry

_log = get_logger("cache")


class GraphCache:
    """Looks up one captured graph, and counts what became of that."""

    def __init__(self, session: CompileSession, agreement: Agreement | None = None) -> None:
        self._session = session
        self._agreement = agreement
        self._folder = GraphFolder(session.store.root)
        self._notes = KeyNotes(session.store.root)
        self._key = ""
        self._fields: dict[str, str] = {}
        self._refusal = ""
        self._revived: list[GraphReport] = []
        self._compiled = 0

    def __call__(self, gm: Any, example_inputs: Sequence[Any]) -> GraphCacheEntry | None:
        """How a captured graph is looked up and stored; None where it is not.

        torch may need the graph in a form that it can store by itself, whatever the cache does with it.
        """
        if not self._session.settings.graph_cache:
            return self._unlisted()
        try:
            self._key = self._address(gm, example_inputs)
            from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry, entry_name

            if not entries_are_here(self._key, self._session, entry_name):
                self._adopt_artifacts()
        except CacheBypass as error:
            self._refusal = str(error)
            return self._unlisted()
        except Exception as error:  # whatever it is, the graph can be compiled
            _log.debug("a graph has no key", exc_info=True)
            self._key, self._refusal = "", f"its key cannot be computed ({type(error).__name__})"
            return self._unlisted()
        seen = note_key(gm, self._key)
        return GraphCacheEntry(self._key, self._folder.path, self._revive, self._stored, seen=seen)

    def _unlisted(self) -> GraphCacheEntry | None:
        """An entry that is found by nobody, where torch itself stores what is compiled."""
        if not stored_by_torch():
            return None
        from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry

        folder = process_folder() / "unlisted"
        return GraphCacheEntry(secrets.token_hex(16), folder, self._revive, lambda: None, listed=False)

    def _adopt_artifacts(self) -> None:
        """Add to the cache folder what `torch.compiler.load_cache_artifacts` brought of the graph."""
        from polyfuse.torch_compat.tracing.aot_cache import artifacts_folder, entry_name, without_bundle

        there = artifacts_folder()
        if not (there / self._key).is_dir() or distrusted(there):
            return

        def unpacked(record: Any) -> Any:
            return record.unpack(self._session.store) if isinstance(record, PortableGraph) else record

        for path in sorted((there / self._key).iterdir()):
            try:
                content = without_bundle(path.read_bytes(), unpacked)
            except Exception as error:
                _log.info("%s cannot be used: %s", path, error)
            else:
                atomic_write(self._folder.path / self._key / entry_name(content), content)

    @property
    def key(self) -> str:
        """Under which the graph is stored; empty where it bypasses the cache."""
        return self._key

    @property
    def refused(self) -> bool:
        """Whether what was captured has no text, so that the graph is compiled wherever it is captured."""
        return bool(self._refusal) and not self._key and not stored_by_torch()

    @property
    def may_hit(self) -> bool:
        """Whether there is something under the key of the graph."""
        return bool(self._key) and self._folder.holds(self._key)

    def note(self, compiled: BoxedCallable) -> None:
        """Record a graph that was compiled, since nothing was found."""
        self._compiled += 1
        if not self._key:
            return
        record = cache_record(compiled)
        if isinstance(record, str):
            self._refusal = self._refusal or record

    def count_outcome(self) -> None:
        """Count what became of the graph, and report what was found."""
        if not self._session.settings.graph_cache:
            return
        if self._key and not self._compiled:
            count("hit")
            for report in self._revived:
                publish(report)
        elif self._key:
            count("miss")
        elif self._refusal:
            self._bypass()

    def _bypass(self) -> None:
        _log.info("a graph bypasses the graph cache: %s", self._refusal)
        count("bypass", self._refusal)
        self._notes.bypassed(self._refusal)
        note_bypass(self._refusal)

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
            self._notes.write(self._key, self._fields)
            share_entries(self._key, self._session)

    def _address(self, gm: Any, example_inputs: Sequence[Any]) -> str:
        settings = self._session.settings
        parts = environment_of(self._session)
        text = captured_text(gm, example_inputs)
        if is_bucket():  # its entry says how its results lie
            text += "\nbucket"
        from polyfuse.torch_compat.tracing.aot_cache import bypass_reason

        refused = bypass_reason(gm)
        if refused:
            raise CacheBypass(refused)
        self._fields = {
            **{f"{part} {_first_word(line)}": line for part, lines in parts.items() for line in lines},
            **{f"option {name}": repr(value) for name, value in settings.affecting_code().items()},
            "graph": text,
        }
        return key_of(text, self._session, parts)

    def reopen(self, key: str, name: str) -> Callable[..., Any]:
        """An entry that was stored under a key, where nothing was captured; whatever is missing raises."""
        from polyfuse.torch_compat.tracing.aot_cache import GraphCacheEntry, entry_name, reopened

        self._key = key
        content = (self._folder.path / key / name).read_bytes()
        if entry_name(content) != name:
            raise OSError(f"the entry {name} is damaged")
        mark_used(self._folder.path / key)
        found = reopened(content, GraphCacheEntry(key, self._folder.path, self._revive, self._stored))
        self.count_outcome()
        return found

    def _revive(self, stored: GraphRecord | PortableGraph) -> BoxedCallable:
        """A stored graph as something that can be called."""
        from polyfuse.torch_compat.tracing.aot_cache import CacheEntryGone

        try:
            if isinstance(stored, PortableGraph):
                stored = stored.unpack(self._session.store)
            run, report = revived(stored, self._session, agreement=self._agreement)
        except CacheEntryGone as error:
            self._folder.drop(self._key)
            _log.info("a cached graph cannot be used: %s", error)
            raise
        self._revived.append(report)
        return run


def entries_are_here(key: str, session: CompileSession, name_of: Callable[[bytes], str]) -> bool:
    """Whether whole entries under a key lie in the session's cache folder, once those that others keep, who
    share theirs, are there too.

    Args:
        name_of: what an entry of that content is called.
    """
    store, folder = session.store, GraphFolder(session.store.root)
    if store.also is not None and not folder.holds(key):
        folder.adopt(key, store.also, name_of)
    folder.mend(key, name_of)
    if store.sharing is not None and not (session.exchanges or folder.holds(key)):
        store.sharing.fetch_graph(key)
        folder.mend(key, name_of)
    return folder.holds(key)


def share_entries(key: str, session: CompileSession) -> None:
    """Give those who share the cache what is stored under a key, and keep the folder within its limit."""
    store = session.store
    if store.sharing is not None:
        store.sharing.give_graph(key)
    trim_if_due(store.root, store.limit)


def key_of(text: str, session: CompileSession, parts: Mapping[str, Sequence[str]] | None = None) -> str:
    """The key of a graph with a text, compiled in a session whose environment has these parts.

    Raises:
        CacheBypass: nobody can say what it depends on.
    """
    given = environment_of(session) if parts is None else parts
    environment = [line for lines in given.values() for line in lines]
    return compiled_key(text, environment, session.settings.fingerprint())


def environment_of(session: CompileSession) -> Mapping[str, Sequence[str]]:
    """What a compiled graph depends on besides the captured one and the options, as lines by their kinds.

    Raises:
        CacheBypass: nobody can say.
    """
    refused = _bypassed_by(session.settings)
    if refused:
        raise CacheBypass(refused)
    code = partial(code_digest, memory=session.store.root / "code")
    plugins = inventory(session.plugins, code)
    if session.key_facts is None or plugins is None:
        raise CacheBypass("a plugin does not say what its results depend on, or its files changed")
    own = code("polyfuse")
    if not own:
        raise CacheBypass("the compiler's own files changed since it was loaded")
    kinds = filter(is_present, session.device_types())  # who answers for another type need not be imported
    devices = [f"{kind} {sorted(device_of(kind).switches().items())}" for kind in kinds]
    if session.settings.autotunes:  # what is fastest depends on the machine
        devices.append(device_of("cpu").facts())
    devices += costs_facts(session.device_types())
    for group in filter(None, map(group_of, symmetric_groups(session.settings.symmetric_memory))):
        devices.append(f"symmetric memory of {len(group.ranks)} in group {group.name}")
    return {
        "switch": global_state.switches(),
        "device": devices,
        "plugin": plugins,
        "added by plugins": session.key_facts,
        "compiler": (own,),
    }


def _first_word(line: str) -> str:
    """What a line of a key is about."""
    return line.partition(" ")[0][:40]


def _bypassed_by(settings: Settings) -> str:
    """Why graphs bypass the cache with these options; empty if they do not."""
    asked = {
        "cache": not settings.cache,
        "fuel": settings.fuel is not None,
        "dump": bool(settings.dump),
        "profile": settings.profile,
        "benchmark_harness": settings.benchmark_harness,
        "benchmark_fusion": settings.benchmark_fusion,
    }
    names = [name for name, on in asked.items() if on]
    if not names and texts_are_logged():
        return "TORCH_LOGS prints what only a compile makes"
    return f"the option {names[0]!r} is set" if names else ""
