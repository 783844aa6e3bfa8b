"""Graphs that cannot be distinguished before they are traced, found behind AOTAutograd by what was traced.

Tensors that are spread over processes (DTensor) bypass the graph cache: what is traced of them may depend on
the rank of the process. Each process traces them, but those that traced the same share what follows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from polyfuse.base.digest import digest
from polyfuse.base.files import atomic_write
from polyfuse.base.log import get_logger
from polyfuse.cache import GraphFolder
from polyfuse.cache.graphs import count
from polyfuse.compiler.graph_cache.lookup import entries_are_here, key_of, share_entries
from polyfuse.compiler.graph_cache.record import GraphRecord, revived
from polyfuse.compiler.once import only_rank
from polyfuse.compiler.reports.logs import publish
from polyfuse.frontend.captured import CacheBypass
from polyfuse.frontend.traced_text import traced_text
from polyfuse.torch_compat.groups import this_rank
from polyfuse.torch_compat.tracing.aot import cache_record

if TYPE_CHECKING:
    from polyfuse.compiler.session import CompileSession
    from polyfuse.frontend.graph import AtenGraph, BoxedCallable
    from polyfuse.runtime.ranks.agreement import Agreement

_log = get_logger("cache")


def found_or_compiled(
    graph: AtenGraph,
    session: CompileSession,
    agreement: Agreement | None,
    compile: Callable[[], BoxedCallable],
) -> BoxedCallable:
    """A traced graph as some process compiled it, or as `compile` does, which is then stored."""
    try:
        key = key_of(f"traced\n{traced_text(graph)}", session)
    except CacheBypass as error:
        _log.info("a traced graph is not looked up: %s", error)
        return compile()
    except Exception:  # whatever it is, the graph can be compiled
        _log.debug("a traced graph has no key", exc_info=True)
        return compile()
    found = _found(key, session, agreement)
    if found is not None:
        return found
    with only_rank(session, key, lambda: _found(key, session, agreement), exchanged=True) as found:
        if found is not None:
            return found
        compiled = compile()
        record = cache_record(compiled)
        if isinstance(record, GraphRecord):
            _store(key, record, session)
            if this_rank() >= 0:  # those that wait need its kernels too
                session.pool.wait_until_idle()
        return compiled


def _found(key: str, session: CompileSession, agreement: Agreement | None) -> BoxedCallable | None:
    if not entries_are_here(key, session, digest):
        return None
    folder = GraphFolder(session.store.root)
    for path in sorted((folder.path / key).glob("[!.]*")):
        try:
            record = pickle.loads(path.read_bytes())
            run, report = revived(record, session, agreement=agreement)
        except Exception as error:
            _log.info("a stored graph cannot be used: %s", error)
            folder.drop(key)
            return None
        publish(report)
        count("traced")
        return run
    return None


def _store(key: str, record: GraphRecord, session: CompileSession) -> None:
    try:
        content = pickle.dumps(record)
        atomic_write(GraphFolder(session.store.root).path / key / digest(content), content)
    except Exception as error:  # it runs all the same
        _log.info("a traced graph cannot be stored: %s", error)
        return
    share_entries(key, session)
