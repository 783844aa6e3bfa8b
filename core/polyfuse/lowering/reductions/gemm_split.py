"""GEMMs whose depth is split: programs that have a part of it each write sums of their own, which are added
up where the result is made. That is a loop without a reduction, so that it fuses with what follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyfuse.ir.expr import Expr, apply, load, reindex, rewrite
from polyfuse.ir.nodes import Buffer, LoopNode
from polyfuse.lowering.reductions.gemm_loops import GemmLoops, Unavailable
from polyfuse.symbolic import axis, axis_name, axis_size, bounds

__all__ = ["SplitGemm", "split_depth"]


@dataclass(frozen=True)
class SplitGemm:
    """What is done instead of a call.

    Attributes:
        nodes: the GEMM of each part, and what is done with their sum.
        buffer: of the parts' sums, (parts, *axes of the result).
    """

    nodes: tuple[LoopNode, ...]
    buffer: Buffer


def split_depth(form: GemmLoops, parts: int) -> SplitGemm:
    """A GEMM with its depth in so many equal parts, which are added in their order.

    Raises:
        Unavailable: the depth has no such parts, or a size has no bound.
    """
    gemm, total = form.gemm, form.accumulator
    depth = gemm.raxes[0]
    steps, dtype = axis_size(depth), total.dtype
    if len(gemm.raxes) != 1 or not isinstance(steps, int) or steps % parts:
        raise Unavailable(f"its depth is not divided into {parts} parts")
    # parts of a size that is known only at run time lie as far apart as they may be long, so that no size is
    # a factor of a stride
    count = bounds(total.numel)[1]
    if dtype is None or count is None:
        raise Unavailable("the size of its result has no bound")
    part, inside = axis("s0", parts), axis("k0", steps // parts)
    moved = {axis_name(depth): part * (steps // parts) + inside}
    name = f"{total.name}_parts"
    each = replace(
        gemm,
        name=f"{gemm.name}_parts",
        axes=(part, *gemm.axes),
        raxes=(inside,),
        outputs=(name,),
        index=part * count + gemm.index,
        values=tuple(reindex(value, moved) for value in gemm.values),
    )

    def added(expr: Expr) -> Expr:
        if expr.op != "load" or expr.buffer != total.name:
            return expr
        found = load(name, expr.index, dtype)
        for number in range(1, parts):
            found = apply("add", found, load(name, expr.index + number * count, dtype))
        return found

    finish = replace(form.finish, value=rewrite(form.finish.value, added))
    buffer = replace(total, name=name, size=(parts, *total.size), stride=(count, *total.stride))
    return SplitGemm((each, finish), buffer)
