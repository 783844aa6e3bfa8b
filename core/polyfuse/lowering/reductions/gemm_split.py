"""GEMMs whose depth is split: programs that have a part of it each write sums of their own, and a second loop
adds these up. It is a reduction like any other, so that it fuses with what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.ir.expr import load, reindex
from polyfuse.ir.nodes import Buffer, LoopNode
from polyfuse.lowering.reductions.gemm_loops import GemmLoops, Unavailable
from polyfuse.symbolic import axis, axis_name, axis_size

__all__ = ["SplitGemm", "split_depth"]


@dataclass(frozen=True)
class SplitGemm:
    """What is done instead of a call.

    Attributes:
        nodes: the GEMM of each part, their sum, and what is done with it, in order.
        buffers: of the parts' sums, (parts, *axes of the result), and of the sum.
    """

    nodes: tuple[LoopNode, ...]
    buffers: tuple[Buffer, ...]


def split_depth(form: GemmLoops, parts: int) -> SplitGemm:
    """A GEMM with its depth in so many equal parts.

    Raises:
        Unavailable: the depth has no such parts.
    """
    gemm, total = form.gemm, form.accumulator
    depth = gemm.raxes[0]
    steps = axis_size(depth)
    if len(gemm.raxes) != 1 or not isinstance(steps, int) or steps % parts:
        raise Unavailable(f"its depth is not divided into {parts} parts")
    if total.dtype is None or not isinstance(total.numel, int):
        raise Unavailable("the size of its result is known only at run time")
    part, inside = axis("s0", parts), axis("k0", steps // parts)
    moved = {axis_name(depth): part * (steps // parts) + inside}
    name = f"{total.name}_parts"
    partial = replace(total, name=name, size=(parts, *total.size), stride=(total.numel, *total.stride))
    where = part * total.numel + gemm.index
    each = replace(
        gemm,
        name=f"{gemm.name}_parts",
        axes=(part, *gemm.axes),
        raxes=(inside,),
        outputs=(name,),
        index=where,
        values=tuple(reindex(value, moved) for value in gemm.values),
    )
    value = load(name, where, total.dtype)
    added = replace(gemm, raxes=(part,), kind="sum", values=(value,))
    return SplitGemm((each, added, form.finish), (partial, total))
