"""GEMMs whose depth is divided into several axes, and those whose depth is split: programs that have a part
of it each write sums of their own, which are added up where the result is made. That is a loop without a
reduction, so that it fuses with what follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from polyfuse.ir.expr import Expr, apply, load, reindex, rewrite
from polyfuse.ir.nodes import Buffer, LoopNode
from polyfuse.lowering.reductions.gemm_loops import GemmLoops, Unavailable
from polyfuse.symbolic import axis, axis_name, axis_size, bounds


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
    """A GEMM with its depth in so many equal parts, which are added in their order. Of a depth of several
    axes it is the first one that is divided.

    Raises:
        Unavailable: the depth has no such parts, or a size has no bound.
    """
    gemm, total = form.gemm, form.accumulator
    depth = gemm.raxes[0]
    steps, dtype = axis_size(depth), total.dtype
    if not isinstance(steps, int) or steps % parts:
        raise Unavailable(f"its depth is not divided into {parts} parts")
    # parts of a size that is known only at run time lie as far apart as they may be long, so that no size is
    # a factor of a stride
    count = bounds(total.numel)[1]
    if dtype is None or count is None:
        raise Unavailable("the size of its result has no bound")
    part, inside = axis("s0", parts), axis(axis_name(depth), steps // parts)
    moved = {axis_name(depth): part * (steps // parts) + inside}
    name = f"{total.name}_parts"
    each = replace(
        gemm,
        name=f"{gemm.name}_parts",
        axes=(part, *gemm.axes),
        raxes=(inside, *gemm.raxes[1:]),
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


def axes_by_strides(form: GemmLoops, strides: Iterable[int]) -> GemmLoops:
    """A GEMM whose depth is several axes, one inside the other, with those of some strides that are shorter
    than it. As it is where the depth is several axes already, or the strides do not divide each other.
    """
    depth, size = form.gemm.raxes[0], axis_size(form.gemm.raxes[0])
    if len(form.gemm.raxes) != 1 or not isinstance(size, int):
        return form
    cuts = [1, *sorted({step for step in strides if 1 < step < size}), size]
    if any(long % short for short, long in pairwise(cuts)):
        return form
    axes = [axis(f"k{k}", long // short) for k, (short, long) in enumerate(pairwise(cuts))]
    moved = {
        axis_name(depth): sum((a * step for a, step in zip(axes, cuts, strict=False)), start=axes[0] * 0)
    }
    gemm = replace(
        form.gemm,
        raxes=tuple(reversed(axes)),
        values=tuple(reindex(value, moved) for value in form.gemm.values),
    )
    return replace(form, gemm=gemm)
