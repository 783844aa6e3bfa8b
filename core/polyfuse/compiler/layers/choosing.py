"""Which graphs are compiled from a few of their periods."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from polyfuse.base.settings import Settings
from polyfuse.frontend.graph import AtenGraph
from polyfuse.frontend.periods import periods_of
from polyfuse.lowering.shortened import Shortening


def shortened(aten: AtenGraph, settings: Settings, any_size: bool) -> Iterator[Shortening]:
    """The ways to compile a graph from a few of its periods, the one that leaves out most first.

    Args:
        any_size: whether the graph gets programs for classes of its sizes: each is made of the whole of it.
    """
    timed = settings.autotunes or settings.benchmark_fusion
    if settings.repeated_layers == "off" or timed or settings.fuel is not None:
        return
    if any_size and settings.size_classes and _has_sizes(aten):
        return
    yield from map(Shortening, periods_of(aten))


def _has_sizes(aten: AtenGraph) -> bool:
    return any(isinstance(item.value, torch.SymInt) for item in aten.inputs)
