"""A graph is compiled by one of the processes of a distributed program on a host; the others find it.

The process that comes first holds a lock of the cache folder while it traces, lowers, tunes and builds. Those
that wait look into the graph cache again when it is released. Nothing that is done under the lock waits for
another rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from polyfuse.base.errors import CacheError
from polyfuse.base.files import locked
from polyfuse.base.log import get_logger
from polyfuse.torch_compat.groups import this_rank
from polyfuse.torch_compat.tracing.aot import backward_at_once

if TYPE_CHECKING:
    from polyfuse.compiler.session import CompileSession

__all__ = ["Turn", "only_rank", "taking_turns"]

_log = get_logger("ranks")


class Turn:
    """The right of one process to compile a graph, until its `taking_turns` ends."""

    def __init__(self, session: CompileSession, stack: ExitStack) -> None:
        self._session, self._stack = session, stack

    def wait(self, key: str, found: Callable[[], bool]) -> None:
        """Wait until no other rank of this host compiles the graph of a key.

        Args:
            found: whether what was compiled can be read, so that nothing is left to do.
        """
        settings = self._session.settings
        if not settings.cache:
            return
        # also where something is found: its kernels may still be built by the rank that holds the lock
        turn = ExitStack()
        if not turn.enter_context(only_rank(self._session, key)) or found():
            turn.close()
            return
        self._stack.push(turn)
        # those that wait need the kernels too, and of a graph with gradients the whole
        self._stack.callback(self._session.pool.wait_until_idle)
        self._stack.enter_context(backward_at_once() if settings.graph_cache else nullcontext())


@contextmanager
def only_rank(session: CompileSession, key: str) -> Iterator[bool]:
    """Be the only rank of this host inside, for a key.

    Yields:
        whether another one may have been, before; not where this is no distributed program, or where the lock
        cannot be had: each rank then works for itself.
    """
    with ExitStack() as stack:
        waited = this_rank() >= 0
        if waited:
            path = session.store.root / "locks" / f"{key}.lock"
            try:
                stack.enter_context(locked(path, float(session.settings.build_timeout)))
            except (CacheError, OSError) as error:
                _log.info("compiling without the lock of other ranks: %s", error)
                waited = False
        yield waited


@contextmanager
def taking_turns(session: CompileSession) -> Iterator[Turn]:
    """Hold what `Turn.wait` got until the graph is compiled."""
    with ExitStack() as stack:
        yield Turn(session, stack)
