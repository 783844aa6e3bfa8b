"""Two units as plugins' fusion rules see them."""

from __future__ import annotations

from collections.abc import Callable

from polyfuse.ir.graph import Graph
from polyfuse.plugin import FusionPair, TargetInfo
from polyfuse.schedule.fusion.score import nbytes, shared_bytes
from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import IndexLike, axis_size, product


def pair_of(
    graph: Graph,
    first: Unit,
    second: Unit,
    backend: str,
    target: TargetInfo,
    hint: Callable[[IndexLike], int],
) -> FusionPair:
    """What rules are told of two units whose kernel `backend` would generate."""
    touched = first.seen.keys() | second.seen.keys()
    spaces = (first.space, second.space)
    return FusionPair(
        tuple(member.node for member in first.members),
        tuple(member.node for member in second.members),
        first.device,
        backend,
        target,
        points=max(hint(product(axis_size(a) for a in space.axes)) for space in spaces),
        loop=max(hint(product(axis_size(a) for a in space.raxes)) for space in spaces),
        shared_bytes=shared_bytes(graph, first, second, hint),
        touched_bytes=nbytes(graph, touched, hint),
        buffers=len(touched),
    )
