"""Observers of graphs while they are compiled and run, as `polyfuse report` is one.

Usually nobody does, and a compile pays one comparison with None in each of the functions below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from polyfuse.frontend.graph import AtenGraph
    from polyfuse.runtime.module import KernelEntry


class Watcher(Protocol):
    """An observer of each compile; it must change nothing that is compiled."""

    def captured(self, gm: Any, inputs: Sequence[Any]) -> AbstractContextManager[None]:
        """Dynamo captured a graph; what happens inside is its compile, the backward's left out if that is
        compiled when it first runs."""

    def compiling(self, aten: AtenGraph) -> AbstractContextManager[None]:
        """The stages of one traced graph happen inside."""

    def entries(self, kernels: Mapping[str, KernelEntry]) -> Mapping[str, KernelEntry]:
        """The kernels that a program is loaded with, or what stands for them."""

    def built(self, aten: AtenGraph, built: object) -> None:
        """A graph was compiled: its `BuiltGraph`."""

    def reported(self, report: object) -> None:
        """A graph is compiled, was read from the graph cache, or runs in eager mode: its `GraphReport`."""


_watcher: Watcher | None = None


@contextmanager
def watch(watcher: Watcher) -> Iterator[None]:
    """Call a watcher for all that is compiled meanwhile, in every thread."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before


def note_captured(gm: Any, inputs: Sequence[Any]) -> AbstractContextManager[None]:
    """Around the compile of what Dynamo captured."""
    return nullcontext() if _watcher is None else _watcher.captured(gm, inputs)


def compiling(aten: AtenGraph) -> AbstractContextManager[None]:
    """Around the stages of a traced graph."""
    return nullcontext() if _watcher is None else _watcher.compiling(aten)


def entries_for(kernels: Mapping[str, KernelEntry]) -> Mapping[str, KernelEntry]:
    """The kernels that a program is loaded with."""
    return kernels if _watcher is None else _watcher.entries(kernels)


def note_built(aten: AtenGraph, built: object) -> None:
    """After the stages of a traced graph."""
    if _watcher is not None:
        _watcher.built(aten, built)


def note_report(report: object) -> None:
    """After a report was recorded."""
    if _watcher is not None:
        _watcher.reported(report)
