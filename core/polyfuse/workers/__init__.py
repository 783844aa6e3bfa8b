"""Builds in parallel: threads that wait for compilers, and light worker processes for those that are
libraries.

Names are resolved on first use, so that a worker process, which imports this package, imports nothing more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polyfuse.base.lazy import attribute

if TYPE_CHECKING:
    from polyfuse.workers.future import BuildFuture as BuildFuture
    from polyfuse.workers.pool import BuildPool as BuildPool

__all__ = ["BuildFuture", "BuildPool"]


_LAZY = {
    "BuildFuture": "polyfuse.workers.future:BuildFuture",
    "BuildPool": "polyfuse.workers.pool:BuildPool",
}


def __getattr__(name: str) -> object:
    return attribute(__name__, _LAZY, name)
