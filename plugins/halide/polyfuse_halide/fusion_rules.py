"""Fusions that this backend's schedules express badly, or that would cost more than they save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import Node, Pointwise, Reduction
from polyfuse.kit.streams import too_many_streams
from polyfuse.plugin import Claim, FusionPair, FusionRule, No, Yes
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, coefficient, free_axes, product

_IN_CACHE: Final = 2 << 20
"""Bytes up to which the order of a loop hardly matters."""


def columns_apart(pair: FusionPair) -> Claim:
    """Whether no reduction over columns shares its loop with what is stored at each of its iterations.

    A schedule has one order of loops for all that a kernel computes. For a reduction along an outer axis of
    memory that is a group of columns from the first row to the last; what is stored for each element in that
    order, or computed once and stored for it, runs through memory in steps of a row.
    """
    if pair.touched_bytes < _IN_CACHE:
        return Yes()
    for mine, others in ((pair.first, pair.second), (pair.second, pair.first)):
        for node in mine:
            if isinstance(node, Reduction) and _is_along_columns(node):
                if any(_runs_beside(other, node) for other in others):
                    return No("what is stored for each element would follow the columns of a reduction")
    return Yes()


def few_streams(pair: FusionPair) -> Claim:
    """Whether two groups of nodes share enough data to become a kernel of many arrays."""
    reason = too_many_streams(pair.streams, pair.shared_bytes, pair.touched_bytes)
    return No(reason) if reason else Yes()


RULES: Final = (
    FusionRule("few-streams", allows=few_streams),
    FusionRule("columns-apart", allows=columns_apart),
)


def _is_along_columns(node: Reduction) -> bool:
    """Whether of what it reads at each iteration, neighbours in memory belong to different results."""
    inner = {axis_name(axis) for axis in node.raxes}
    indices = [item.index for expr in node.expressions() for item in loads(expr)]
    return any(
        coefficient(index, axis_name(axis)) == 1
        for index in indices
        if inner & set(free_axes(index))
        for axis in node.axes
    )


def _runs_beside(other: Node, node: Reduction) -> bool:
    """Whether a node stores something at each iteration of a reduction."""
    return isinstance(other, Pointwise) and _extent(other.axes) == _extent((*node.axes, *node.raxes))


def _extent(axes: Sequence[Index]) -> IndexLike:
    return product(axis_size(axis) for axis in axes)
