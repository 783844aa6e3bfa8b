"""Column reductions fused with work along the rows of the same matrix, which is read once.

The gradient of a normalisation needs both: along each row for the input, down the columns for the weight. The
kernel of the rows adds each one to the partial sums of its group of rows; a second, small kernel adds up the
groups.
"""

from __future__ import annotations

from dataclasses import replace

from polyfuse.ir.expr import Expr, const, load, loads, reindex, walk
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, LoopNode, Node, Pointwise, Reduction, Scatter
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.plugin import TargetInfo
from polyfuse.symbolic import axis, flat_index, product, unflattened

_COLUMNS = (256, 8192)
"""Lengths of rows that a thread block can hold."""
_FEW_COLUMNS = 32
"""Length of the shortest row along which threads work."""
_CACHED = 6
"""Times `TargetInfo.column_bytes` up to which a host reads a matrix as well twice: 1.2 MB were not faster at
once, 2 MB were."""
_GROUPS = 64
"""Groups that are enough for the threads of a host; their number decides nothing, so that results do not
depend on it."""
_SHARED = 32
"""Rows of a group at least there: adding up groups costs a small part of what it saves."""
_ITEM = DType.f32.itemsize
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
    on_host = not target_info.blocks
    if on_host and rows * columns * _ITEM <= _CACHED * target_info.column_bytes:
        return None
    count = _rows_of_group(rows, columns, target_info.blocks)
    least = _FEW_COLUMNS if on_host else _COLUMNS[0]
    if not least <= columns <= _COLUMNS[1] or count < _FEWEST:
        return None
    if not any(_is_read_by_rows(graph, position, n, rows, columns, on_host) for n in _matrices(node)):
        return None
    return _parts(graph, node, rows, count)


def _rows_of_group(rows: int, columns: int, blocks: int) -> int:
    """Rows of each group, so that groups keep a device of so many blocks busy: short rows take more of them,
    as long as there are a few rows for each. A divisor of all rows where one is near. Without blocks, for the
    threads of a host.
    """
    if not blocks:
        return max(_SHARED, -(-rows // _GROUPS))
    groups = max(1, blocks) * max(1, _FULL // columns)
    while groups > blocks and rows // groups < _ENOUGH:
        groups //= 2
    least = max(1, rows // max(1, groups))
    return next((n for n in range(least, 2 * least) if rows % n == 0), least)


def _matrices(node: Reduction) -> set[str]:
    """Buffers that a sum reads as a matrix with contiguous rows."""
    index = flat_index((*node.raxes, *node.axes))
    return {item.buffer for item in loads(node.values[0]) if item.index == index}


def _is_read_by_rows(graph: Graph, position: int, name: str, rows: int, columns: int, on_host: bool) -> bool:
    """Whether another node reduces the rows of a matrix, and needs no column's sum for it. One that merely
    passes through them gains less from it than the sum loses by its groups, unless a host's threads do it,
    and wait for memory rather than for arithmetic.
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
        if on_host and isinstance(node, Pointwise) and product(node.sizes) == rows * columns:
            if not any(_is_slow(expr) for expr in node.expressions()):
                return True
    return False


def _is_slow(expr: Expr) -> bool:
    return any(item.op in SCALAR_OPS and SCALAR_OPS[item.op].slow for item in walk(expr))


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
