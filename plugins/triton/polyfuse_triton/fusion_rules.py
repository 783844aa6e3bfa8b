"""Fusions that would cost more than they save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import LoopNode, Node, Pointwise, Reduction, Scan, Scatter
from polyfuse.plugin import Claim, FusionPair, FusionRule, No, Yes
from polyfuse.symbolic import Index, IndexLike, atoms, axis_name, axis_size, coefficient, free_axes, product

__all__ = ["RULES", "keeps_groups"]


def keeps_groups(first: Sequence[Node], second: Sequence[Node]) -> Claim:
    """Whether rows of which groups add to one row each stay rows: a program can then take a whole group, and
    needs no atomic operations.
    """
    nodes = (*first, *second)
    for node in nodes:
        if isinstance(node, Scatter) and _is_grouped(node):
            rows = axis_size(node.axes[0])
            if not all(isinstance(other, LoopNode) and _has_rows(other, rows) for other in nodes):
                return No("rows that add to shared sums would be taken apart, and need atomic operations")
            if any(isinstance(o, Scatter) and o.mode == "add" and not _is_grouped(o) for o in nodes):
                return No("what adds to shared sums would be beside what needs atomic operations")
    return Yes()


def _rows_stay_whole(pair: FusionPair) -> Claim:
    return keeps_groups(pair.first, pair.second)


RULES: Final = (FusionRule("whole-groups", allows=_rows_stay_whole),)


def _is_grouped(node: Scatter) -> bool:
    return node.mode == "add" and any(
        atom.kind == "floordiv" and free_axes(atom.args[0]) == (axis_name(node.axes[0]),)
        for atom in atoms(node.index)
    )


def _has_rows(node: LoopNode, rows: IndexLike) -> bool:
    """Whether a node runs through so many rows, and all that it accesses takes them as one axis."""
    axes, outer = (*node.axes, *node.raxes), list[Index]()
    for var in axes:
        if product(axis_size(a) for a in outer) == rows:
            break
        outer.append(var)
    if product(axis_size(a) for a in outer) != rows:
        return False
    return all(_is_one_axis(index, outer) for index in _indices(node))


def _is_one_axis(index: IndexLike, axes: Sequence[Index]) -> bool:
    step: IndexLike | None = None
    for var in reversed(axes):
        found = coefficient(index, axis_name(var))
        if found is None and len(axes) > 1:
            return False
        if step is not None and found != step:
            return False
        step = None if found is None else found * axis_size(var)
    return True


def _indices(node: LoopNode) -> Iterator[IndexLike]:
    for expr in node.expressions():
        for item in loads(expr):
            yield item.index
    if isinstance(node, (Pointwise, Reduction, Scan, Scatter)):
        yield node.index
