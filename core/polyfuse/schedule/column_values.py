"""What is one value for a group of neighbouring columns, stored for each column.

A norm of groups of channels has a mean for each group and a weight for each channel. Where channels are last,
a loop over the rows of such a matrix would have an axis of groups and one of a group's columns, the only one
along which memory is contiguous, and too short for vectors. What is the same in all rows is computed before,
for each column, and the two axes are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.expr import Expr, load, loads, rewrite, walk
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, LoopNode, Node, Pointwise, Reduction
from polyfuse.plugin import Backend, TargetInfo
from polyfuse.schedule.fusion.space import continues
from polyfuse.schedule.result import Decision
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis_name,
    axis_size,
    coefficient,
    flat_index,
    free_axes,
    product,
)

_SHORT = 64
"""Columns of a group that fill vectors well enough."""
_REPEATED = 16
"""Points at least at which a stored value is read."""
_MOST = 8
"""Values that are stored for one node: each is loaded once more at every point."""

_Groups = tuple[Index, Index]
"""Two axes along which memory is contiguous: that of groups, and that of the columns of one."""


def store_column_values(
    graph: Graph,
    claimed: Mapping[str, Backend],
    target_info: Callable[[str, str], TargetInfo],
    hint: Callable[[IndexLike], int],
    decisions: list[Decision],
) -> tuple[Graph, Mapping[str, Backend]]:
    """`graph` with such values stored, on devices where columns are worked on in strips
    (`TargetInfo.column_bytes`), and who generates its loops.

    Args:
        claimed: who generates the loops of `graph`, by the node's name.
        target_info: that of a backend, by its name, on a device.
        hint: example value of a size.
        decisions: gets an entry for each node that changes.
    """
    nodes: list[Node] = []
    buffers, owners = dict(graph.buffers), dict(claimed)
    for node in graph.nodes:
        found = None
        if isinstance(node, (Pointwise, Reduction)):
            device = graph.buffers[node.writes()[0]].device
            if target_info(claimed[node.name].name, device).column_bytes:
                found = _without_groups(node, graph, hint, device)
        if found is None or not all(claimed[node.name].claims(part) for part in found.nodes):
            nodes.append(node)
            continue
        nodes.extend(found.nodes)
        buffers |= found.buffers
        owners |= {part.name: claimed[node.name] for part in found.nodes}
        reason = f"{len(found.buffers)} values of groups are stored for each column"
        decisions.append(Decision("columns", node.name, "", reason))
    if len(nodes) == len(graph.nodes):
        return graph, claimed
    return replace(graph, buffers=buffers, nodes=tuple(nodes)), owners


@dataclass(frozen=True)
class _Stored:
    """The nodes that replace one, and the buffers between them."""

    nodes: tuple[LoopNode, ...]
    buffers: dict[str, Buffer]


def _without_groups(
    node: Pointwise | Reduction, graph: Graph, hint: Callable[[IndexLike], int], device: str
) -> _Stored | None:
    groups = _groups(node, graph, hint)
    if groups is None:
        return None
    values = _values(node, groups, hint)
    if not 0 < len(values) <= _MOST:
        return None
    made: list[LoopNode] = []
    buffers: dict[str, Buffer] = {}
    read: dict[Expr, Expr] = {}
    for number, value in enumerate(values):
        axes = _axes_of(value, node, groups)
        name = f"{node.name}_columns{number}"
        index = flat_index(axes)
        text = str(value.dtype.torch).removeprefix("torch.")
        buffers[name] = Buffer(name, value.dtype, device, (product(map(axis_size, axes)),), (1,), text)
        made.append(Pointwise(f"{name}_stored", axes, (), name, index, value, origins=node.origins))
        read[value] = load(name, index, value.dtype)
    changed = tuple(rewrite(root, lambda e: e, dict(read)) for root in node.expressions())
    left = [e.index for e in walk(*changed) if e.op in ("load", "index")]
    if not all(continues(index, *groups) for index in left):
        return None
    rest = replace(node, value=changed[0]) if isinstance(node, Pointwise) else replace(node, values=changed)
    return _Stored((*made, rest), buffers)


def _groups(node: Pointwise | Reduction, graph: Graph, hint: Callable[[IndexLike], int]) -> _Groups | None:
    """The axes of short groups of contiguous columns; None where there are none, or these are one axis."""
    indices = [node.index] if isinstance(node, Pointwise) else []
    largest = max(loads(*node.expressions()), key=lambda e: hint(graph.buffers[e.buffer].numel), default=None)
    if largest is not None:
        indices.append(largest.index)
    for main in indices:
        inner = next((a for a in node.axes if coefficient(main, axis_name(a)) == 1), None)
        if inner is None or not isinstance(axis_size(inner), int) or not 1 < hint(axis_size(inner)) < _SHORT:
            continue
        size = axis_size(inner)
        outer = next((a for a in node.axes if coefficient(main, axis_name(a)) == size), None)
        if outer is not None and isinstance(axis_size(outer), int):
            return outer, inner
    return None


def _values(node: Pointwise | Reduction, groups: _Groups, hint: Callable[[IndexLike], int]) -> list[Expr]:
    """The largest values that keep the two axes from being one and vary along few others: each is one for a
    group. What varies from column to column, and is the same in all groups, stays: it is a channel's, and
    the groups are pixels.
    """
    group, column = map(axis_name, groups)
    points = hint(product((*node.sizes, *node.rsizes)))
    found: dict[Expr, None] = {}
    waiting = list(node.expressions())
    while waiting:
        value = waiting.pop(0)
        if value in found:
            continue
        own = hint(product(map(axis_size, _axes_of(value, node, groups))))
        read = [e for e in walk(value) if e.op in ("load", "index")]
        if (
            any(not continues(e.index, *groups) for e in read)
            and any(group in free_axes(e.index) for e in read)
            and not any(coefficient(e.index, column) for e in read if group not in free_axes(e.index))
            and any(e.op == "load" for e in read)
            and own * _REPEATED <= points
            and not any(e.op == "rand" for e in walk(value))
        ):
            found[value] = None
        else:
            waiting.extend(value.args)
    return list(found)


def _axes_of(value: Expr, node: Pointwise | Reduction, groups: _Groups) -> tuple[Index, ...]:
    """The axes along which a value varies, and those of groups."""
    names = {name for e in walk(value) if e.op in ("load", "index") for name in free_axes(e.index)}
    names |= set(map(axis_name, groups))
    return tuple(a for a in _outermost(node, groups) if axis_name(a) in names)


def _outermost(node: Pointwise | Reduction, groups: _Groups) -> Sequence[Index]:
    """All axes, those of groups last."""
    rest = [a for a in (*node.axes, *node.raxes) if a not in groups]
    return (*rest, *groups)
