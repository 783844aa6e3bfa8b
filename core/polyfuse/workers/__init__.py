"""Builds in parallel: threads that wait for compilers, and light worker processes for those that are
libraries.

Names are resolved on first use, so that a worker process, which imports this package, imports nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.workers.future import BuildFuture as BuildFuture
    from polyfuse.workers.pool import BuildPool as BuildPool

__all__ = ["BuildFuture", "BuildPool"]


def __getattr__(name: str) -> object:
    if name == "BuildPool":
        from polyfuse.workers.pool import BuildPool

        return BuildPool
    if name == "BuildFuture":
        from polyfuse.workers.future import BuildFuture

        return BuildFuture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
