"""Fusions that would cut the columns along which vectors run into short groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyfuse.ir.graph import Graph
from polyfuse.schedule.fusion.space import Space, continues
from polyfuse.schedule.fusion.units import Unit, UnitAccess
from polyfuse.symbolic import IndexLike, axis_name, axis_size, coefficient, product

_FULL = 64
"""Neighbouring columns that fill vectors well enough."""
_SMALL = 16
"""Times as many points that the larger unit must have: the other one's data are worth little then."""


def divides_columns(
    graph: Graph,
    first: Unit,
    second: Unit,
    space: Space,
    found: Sequence[UnitAccess],
    hint: Callable[[IndexLike], int],
) -> bool:
    """Whether a small unit, such as one over groups of channels, leaves a large one shorter runs of
    neighbouring columns than vectors need and it has alone.

    Args:
        space: the common space.
        found: the accesses of both in it.
    """
    points = [hint(product(axis_size(a) for a in (*u.space.axes, *u.space.raxes))) for u in (first, second)]
    large = first if points[0] >= points[1] else second
    if max(points) < _SMALL * min(points):
        return False
    alone = _columns(graph, large.space, large.accesses, hint)
    return alone > 1 and _columns(graph, space, found, hint) < min(alone, _FULL)


def _columns(
    graph: Graph, space: Space, found: Sequence[UnitAccess], hint: Callable[[IndexLike], int]
) -> int:
    """Points that lie side by side in the largest buffer along parallel axes that are one for all accesses; 0
    where loops run along memory.
    """
    known = [
        (item.access.index, hint(graph.buffers[item.access.buffer].numel))
        for item in found
        if item.access.index is not None
    ]
    if not known:
        return 0
    largest = max(known, key=lambda item: item[1])[0]
    run, wanted = 1, 1
    left = list(space.axes)
    inner = None
    while True:
        along = next((a for a in left if coefficient(largest, axis_name(a)) == wanted), None)
        if along is None:
            return run if inner is not None else 0
        if inner is not None and not all(continues(index, along, inner) for index, _ in known):
            return run
        left.remove(along)
        inner, run = along, run * hint(axis_size(along))
        wanted = run
