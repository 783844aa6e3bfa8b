"""A graph is compiled by one of the processes of a distributed program; the others find it.

On a host, the process that comes first holds a lock of the cache folder while it traces, lowers, tunes and
builds. Those that wait look into the graph cache again when it is released. Where ranks see different
folders, the one of a folder that holds its lock claims the graph among these, or waits for who did, whose
graph it gets (`distributed/exchange.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

from polyfuse.base.errors import CacheError
from polyfuse.base.files import locked
from polyfuse.base.log import get_logger
from polyfuse.torch_compat.groups import this_rank
from polyfuse.torch_compat.tracing.aot import backward_at_once

if TYPE_CHECKING:
    from polyfuse.compiler.session import CompileSession

_log = get_logger("ranks")

_NOTED: Final = 0.5
"""Seconds from which on a wait is logged."""

Found = TypeVar("Found")


class CompileLock:
    """A lock among the ranks of a distributed program: its holder alone compiles a graph, until its
    `compile_lock` ends."""

    def __init__(self, session: CompileSession, stack: ExitStack) -> None:
        self._session, self._stack = session, stack

    def acquire(self, key: str, found: Callable[[], bool]) -> None:
        """Wait until no other rank compiles the graph of a key.

        Args:
            found: whether what was compiled can be read, so that nothing is left to do.

        Raises:
            RankError: a rank that does not see this cache folder failed to compile it.
        """
        settings = self._session.settings
        if not settings.cache or this_rank() < 0:
            return
        # also where something is found: its kernels may still be built by the rank that holds the lock
        held = ExitStack()
        if held.enter_context(only_rank(self._session, key, found, exchanged=True)):
            held.close()
            return
        self._stack.push(held)
        # those that wait need the kernels too, and of a graph with gradients the whole
        self._stack.callback(self._session.pool.wait_until_idle)
        self._stack.enter_context(backward_at_once() if settings.graph_cache else nullcontext())


@contextmanager
def only_rank(
    session: CompileSession, key: str, find: Callable[[], Found], exchanged: bool = False
) -> Iterator[Found | None]:
    """Be the only rank inside, for a key.

    Args:
        find: what another rank has made; called only where one may have.
        exchanged: what is made under the key is an entry of the graph cache, which ranks that do not see this
            cache folder give each other.

    Yields:
        what was found; None where this is no distributed program, or where the lock cannot be had: each rank
        then works for itself.

    Raises:
        RankError: the rank that this one waited for, in another cache folder, failed.
    """
    with ExitStack() as stack:
        found: Found | None = None
        if this_rank() >= 0:
            seconds = float(session.settings.build_timeout)
            path = session.store.root / "locks" / f"{key}.lock"
            begun = time.monotonic()
            try:
                stack.enter_context(locked(path, seconds))
                _note_wait(begun, "a rank of this host")
                found = find()
            except (CacheError, OSError) as error:
                _log.info("compiling without the lock of other ranks: %s", error)
            exchange = session.exchange
            if not found and exchanged and exchange is not None and session.exchanges:
                run = session.tuner.run_batch if session.settings.autotunes else None
                begun = time.monotonic()
                stack.enter_context(exchange.turn(key, seconds, session.store, run))
                _note_wait(begun, "a rank that sees another folder")
                found = find()
        yield found


def _note_wait(begun: float, whom: str) -> None:
    seconds = time.monotonic() - begun
    if seconds >= _NOTED:
        _log.info("waited %.1f s for %s, which compiled", seconds, whom)


@contextmanager
def compile_lock(session: CompileSession) -> Iterator[CompileLock]:
    """Hold what `CompileLock.acquire` got until the graph is compiled."""
    with ExitStack() as stack:
        yield CompileLock(session, stack)
