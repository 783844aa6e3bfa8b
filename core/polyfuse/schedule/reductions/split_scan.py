"""Long scans of few rows become three nodes: totals of stretches, their scan, and a scan of each stretch.

The last begins with what came before the stretch. Otherwise a wide device would walk through each row with a
single group of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from polyfuse.ir.expr import apply, guard, index_value, load, reindex
from polyfuse.ir.nodes import Node, Reduction, Scan
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis, axis_name, axis_size, product, substitute

__all__ = ["SPLIT_SCANS", "scan_parts"]

SPLIT_SCANS: Mapping[str, str] = MappingProxyType({"sum": "add", "prod": "mul"})
"""Kinds of scans that can be divided, with the operation that joins two parts."""


def scan_parts(
    node: Scan, count: int, add_buffer: Callable[[str, DType, IndexLike], None]
) -> tuple[Node, ...]:
    """The nodes that take the place of a scan of `count` equal stretches.

    Args:
        add_buffer: makes a buffer of a name, a type and a number of elements.
    """
    (along,), (plain,) = node.raxes, node.values
    stretch, step = axis("t0", count), axis("t1", axis_size(along) // count)
    place: dict[str, IndexLike] = {axis_name(along): stretch * axis_size(step) + step}
    value, dtype = reindex(plain, place), plain.dtype
    here: IndexLike = 0
    for var in (*node.axes, stretch):
        here = here * axis_size(var) + var
    names = f"{node.name}_totals", f"{node.name}_before"
    for name in names:
        add_buffer(name, dtype, product((*node.sizes, count)))
    totals = Reduction(
        names[0], (*node.axes, stretch), (step,), (names[0],), here, node.kind, (value,), origins=node.origins
    )
    before = Scan(
        names[1],
        node.axes,
        (stretch,),
        (names[1],),
        here,
        node.kind,
        (load(names[0], here, dtype),),
        origins=node.origins,
    )
    zero = index_value(0)
    begins = apply(
        "bitwise_and", apply("eq", index_value(step), zero), apply("gt", index_value(stretch), zero)
    )
    carried = guard(load(names[1], here - 1, dtype), begins)
    joined = apply("where", begins, apply(SPLIT_SCANS[node.kind], carried, value), value)
    parts = replace(
        node,
        axes=(*node.axes, stretch),
        raxes=(step,),
        index=substitute(node.index, place),
        values=(joined,),
    )
    return totals, before, parts
