"""Long scans of few rows become three nodes: totals of the splits, their scan, and a scan within each split.

The last begins with what came before the split. Otherwise a wide device would walk through each row with a
single thread block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from polyfuse.ir.expr import apply, guard, index_value, load, reindex
from polyfuse.ir.nodes import Node, Reduction, Scan
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, axis_name, axis_size, flat_index, product, substitute

SPLIT_SCANS: Mapping[str, str] = MappingProxyType({"sum": "add", "prod": "mul"})
"""Kinds of scans that can be split, with the operation that joins two parts."""


def scan_parts(
    node: Scan, count: int, add_buffer: Callable[[str, DType, IndexLike], None]
) -> tuple[Node, ...]:
    """The nodes that replace a scan, for `count` equal splits.

    Args:
        add_buffer: makes a buffer of a name, a type and a number of elements.
    """
    (along,), (plain,) = node.raxes, node.values
    split, step = axis("t0", count), axis("t1", axis_size(along) // count)
    axes = (*node.axes, split)
    within: dict[str, IndexLike] = {axis_name(along): split * axis_size(step) + step}
    value, dtype = reindex(plain, within), plain.dtype
    here = flat_index(axes)
    total, start = f"{node.name}_totals", f"{node.name}_before"
    for name in (total, start):
        add_buffer(name, dtype, product((*node.sizes, count)))
    totals = Reduction(total, axes, (step,), (total,), here, node.kind, (value,), origins=node.origins)
    parts = (load(total, here, dtype),)
    starts = Scan(start, node.axes, (split,), (start,), here, node.kind, parts, origins=node.origins)
    zero = index_value(0)
    begins = apply("bitwise_and", apply("eq", index_value(step), zero), apply("gt", index_value(split), zero))
    carried = guard(load(start, here - 1, dtype), begins)
    joined = apply("where", begins, apply(SPLIT_SCANS[node.kind], carried, value), value)
    index = substitute(node.index, within)
    return totals, starts, replace(node, axes=axes, raxes=(step,), index=index, values=(joined,))
