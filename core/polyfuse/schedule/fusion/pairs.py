"""Two units as plugins' fusion rules see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyfuse.ir.graph import Graph
from polyfuse.plugin import FusionPair, TargetInfo
from polyfuse.schedule.fusion.score import nbytes, shared_bytes
from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import Index, IndexLike, axis_size, product


def pair_of(
    graph: Graph,
    first: Unit,
    second: Unit,
    backend: str,
    target: TargetInfo,
    hint: Callable[[IndexLike], int],
) -> FusionPair:
    """What rules get about two units whose kernel `backend` would generate."""
    touched = first.seen.keys() | second.seen.keys()
    spaces = [tuple(hint(_extent(axes)) for axes in (u.space.axes, u.space.raxes)) for u in (first, second)]
    iterations = max(points * loop for points, loop in spaces)
    return FusionPair(
        tuple(member.node for member in first.members),
        tuple(member.node for member in second.members),
        first.device,
        backend,
        target,
        points=max(points for points, _ in spaces),
        loop=max(loop for _, loop in spaces),
        shared_bytes=shared_bytes(graph, first, second, hint),
        touched_bytes=nbytes(graph, touched, hint),
        buffers=len(touched),
        streams=sum(hint(graph.buffers[name].numel) >= iterations for name in touched),
    )


def _extent(axes: Sequence[Index]) -> IndexLike:
    return product(axis_size(one) for one in axes)
