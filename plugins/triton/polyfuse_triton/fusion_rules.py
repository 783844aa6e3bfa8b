"""Fusions that would cost more than they save."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import LoopNode, Node, Reduction
from polyfuse.plugin import Claim, FusionPair, FusionRule, No, Yes
from polyfuse.symbolic import axis_name, axis_size, free_axes, product

_LONG: Final = 4096
"""Elements of a row from which on it takes a good part of a thread block's registers."""

_MOST: Final = 6
"""Arrays of which a thread block keeps a row each."""

_SAVED: Final = 4
"""A fusion that saves this part of the traffic is worth more rows."""


def few_long_rows(pair: FusionPair) -> Claim:
    """Whether two groups of nodes, of which neither needs what the other computes for each element, keep few
    long rows in registers.

    Measured on an H100: eight softmaxes of matmuls with one matrix, in rows of 16384 elements, take 415
    microseconds in one kernel and 297 in two; rows of 4096, 451 and 431; rows of 1024, 200 and 218.
    """
    if pair.streams <= _MOST or pair.shared_bytes * _SAVED >= pair.touched_bytes:
        return Yes()
    longest = min(_row_in_registers(pair.first), _row_in_registers(pair.second))
    if longest < _LONG or _passes_on(pair.first, pair.second):
        return Yes()
    return No(f"rows of {pair.streams} arrays, {longest} elements each, would not stay in registers")


RULES: Final = (FusionRule("few-long-rows", allows=few_long_rows),)


def _row_in_registers(nodes: Sequence[Node]) -> int:
    """Elements of the longest row for which something is computed from what it was reduced to, in these nodes
    or before them; 0 if there is none.
    """
    reduced = {name for node in nodes if isinstance(node, Reduction) for name in node.writes()}
    return max((_row(node, reduced) for node in nodes if isinstance(node, LoopNode)), default=0)


def _row(node: LoopNode, reduced: Collection[str]) -> int:
    axes = node.raxes or node.axes[-1:]
    size = product(axis_size(axis) for axis in axes)
    names = {axis_name(axis) for axis in axes}
    of_row = any(
        item.buffer in reduced or (not node.raxes and names.isdisjoint(free_axes(item.index)))
        for item in loads(*node.expressions())
        if item.index != 0
    )
    return size if of_row and isinstance(size, int) else 0


def _passes_on(first: Sequence[Node], second: Sequence[Node]) -> bool:
    """Whether the second reads what the first computes for each element, not only what it reduces rows to."""
    written = {name for node in first if not isinstance(node, Reduction) for name in node.writes()}
    return any(
        item.buffer in written
        for node in second
        if isinstance(node, LoopNode)
        for item in loads(*node.expressions())
    )
