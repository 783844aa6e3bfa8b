"""Column reductions fused with work along the rows of the same matrix, which is read once.

The gradient of a normalisation needs both: along each row for the input, down the columns for the weight. The
kernel of the rows adds each one to the partial sums of its group of rows; a second, small kernel adds up the
groups.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.expr import Expr, const, load, loads, reindex
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, LoopNode, Node, Pointwise, Reduction, Scatter
from polyfuse.ir.types import DType
from polyfuse.plugin import TargetInfo
from polyfuse.symbolic import axis, flat_index, product, unflattened

__all__ = ["split_columns"]

_COLUMNS = (256, 8192)
"""Lengths of rows that a thread block can hold."""
_FULL = 4096
"""Length of a row that keeps a thread block busy."""
_FEWEST, _ENOUGH = 2, 4
"""Rows of a group that are worth it, and those that are better."""


def split_columns(
    graph: Graph, position: int, target_info: TargetInfo
) -> tuple[tuple[Node, ...], dict[str, Buffer]] | None:
    """The nodes that replace the sum at `position`, with their buffers; None where it stays whole."""
    node = graph.nodes[position]
    if not target_info.column_reductions or not isinstance(node, Reduction) or node.kind != "sum":
        return None
    rows, columns = product(node.rsizes), product(node.sizes)
    if not isinstance(rows, int) or not isinstance(columns, int) or node.values[0].dtype is not DType.f32:
        return None
    count = _rows_of_group(rows, columns, target_info.blocks)
    if not _COLUMNS[0] <= columns <= _COLUMNS[1] or count < _FEWEST:
        return None
    if not any(_is_read_by_rows(graph, position, name, rows, columns) for name in _matrices(node)):
        return None
    return _parts(graph, node, rows, count)


def _rows_of_group(rows: int, columns: int, blocks: int) -> int:
    """Rows of each group, so that groups keep a device of so many blocks busy: short rows take more of them,
    as long as there are a few rows for each. A divisor of all rows where one is near.
    """
    groups = max(1, blocks) * max(1, _FULL // columns)
    while groups > blocks and rows // groups < _ENOUGH:
        groups //= 2
    least = max(1, rows // max(1, groups))
    return next((n for n in range(least, 2 * least) if rows % n == 0), least)


def _matrices(node: Reduction) -> set[str]:
    """Buffers that a sum reads as a matrix with contiguous rows."""
    index = flat_index((*node.raxes, *node.axes))
    return {item.buffer for item in loads(node.values[0]) if item.index == index}


def _is_read_by_rows(graph: Graph, position: int, name: str, rows: int, columns: int) -> bool:
    """Whether another node reduces the rows of a matrix, and needs no column's sum for it. One that merely
    passes through them gains less from it than the sum loses by its groups.
    """
    behind = set(graph.nodes[position].writes())
    for at, node in enumerate(graph.nodes):
        if not isinstance(node, LoopNode):
            # what a call reads is not looked at: it might need the sums
            behind.update(node.writes() if at > position else ())
            continue
        read = {item.buffer for expr in node.expressions() for item in loads(expr)}
        if at > position and behind & read:
            behind.update(node.writes())
            continue
        if at == position or name not in read | set(node.writes()):
            continue
        if isinstance(node, Reduction) and (product(node.sizes), product(node.rsizes)) == (rows, columns):
            return True
    return False


def _parts(
    graph: Graph, node: Reduction, rows: int, count: int
) -> tuple[tuple[Node, ...], dict[str, Buffer]]:
    groups = -(-rows // count)
    row, group = axis("t0", rows), axis("t1", groups)
    index = flat_index((group, *node.axes))
    name, device = f"{node.name}_part", graph.buffers[node.writes()[0]].device
    buffer = Buffer(name, DType.f32, device, (groups * product(node.sizes),), (1,), "float32")
    value = reindex(node.values[0], unflattened(row, node.raxes))
    zero = Pointwise(
        f"{node.name}_zero", (group, *node.axes), (), name, index, const(0.0, DType.f32), origins=node.origins
    )
    target = flat_index((row // count, *node.axes), (groups, *node.sizes))
    added = Scatter(
        f"{node.name}_rows", (row, *node.axes), (), name, target, (), value, "add", origins=node.origins
    )
    parts: tuple[Expr, ...] = (load(name, index, DType.f32),)
    final = replace(node, name=f"{node.name}_final", raxes=(group,), values=parts)
    return (zero, added, final), {name: buffer}
