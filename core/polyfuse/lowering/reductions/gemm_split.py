"""GEMMs whose depth is divided into several axes, and those whose depth is split: programs that have a part
of it each write sums of their own, which are added up where the result is made. That is a loop without a
reduction, so that it fuses with what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from polyfuse.ir.expr import Expr, apply, const, load, loads, reindex, rewrite
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Buffer, LoopNode, Reduction, TemplateCall, View
from polyfuse.kit.contraction import divided_depth
from polyfuse.lowering.indexing.conditions import at_least, masked
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
    """A GEMM with its depth in so many parts, which are added in their order. Of a depth of several axes it
    is the one of `divided_depth`. Where that has no equal parts, the last one begins within the one before
    it, and counts for nothing until that has ended: then one operand has to be read as it is. Weights of
    bytes have parts of whole steps even where there are equal ones.

    Raises:
        Unavailable: the depth has no such parts, or a size has no bound.
    """
    gemm, total = form.gemm, form.accumulator
    sizes, dtype = [axis_size(a) for a in gemm.raxes], total.dtype
    position, count = divided_depth(sizes, parts)
    if position < 0:
        raise Unavailable(f"its depth is not divided into {parts} parts")
    depth, size = gemm.raxes[position], sizes[position]
    assert isinstance(size, int)
    if size % parts == 0 and not any(map(_is_of_bytes, gemm.values)):
        count = size // parts  # zero times a weight that is infinite is no number
    part, inside = axis("s0", parts), axis(axis_name(depth), count)
    # of the last part, steps that the one before it has had
    again = (count * parts - size) * (part // (parts - 1))
    moved = {axis_name(depth): part * count - again + inside}
    values = [reindex(value, moved) for value in gemm.values]
    if count * parts > size:
        values = _counted_once(values, at_least(inside, again))
    # parts of a size that is known only at run time lie as far apart as they may be long, so that no size is
    # a factor of a stride
    apart = bounds(total.numel)[1]
    if dtype is None or apart is None:
        raise Unavailable("the size of its result has no bound")
    name = f"{total.name}_parts"
    each = replace(
        gemm,
        name=f"{gemm.name}_parts",
        axes=(part, *gemm.axes),
        raxes=(*gemm.raxes[:position], inside, *gemm.raxes[position + 1 :]),
        outputs=(name,),
        index=part * apart + gemm.index,
        values=tuple(values),
    )

    def added(expr: Expr) -> Expr:
        if expr.op != "load" or expr.buffer != total.name:
            return expr
        found = load(name, expr.index, dtype)
        for number in range(1, parts):
            found = apply("add", found, load(name, expr.index + number * apart, dtype))
        return found

    finish = replace(form.finish, value=rewrite(form.finish.value, added))
    buffer = replace(total, name=name, size=(parts, *total.size), stride=(apart, *total.stride))
    return SplitGemm((each, finish), buffer)


def _counted_once(values: Sequence[Expr], condition: Expr) -> list[Expr]:
    """The operands of a GEMM, of which one is zero where a condition does not hold: the first that is read as
    it is.
    """
    for number, value in enumerate(values):
        if value.op == "load" and not value.args:
            zero = masked(value, condition, const(0, value.dtype))
            return [*values[:number], zero, *values[number + 1 :]]
    raise Unavailable("no operand is read as it is")


def _is_of_bytes(value: Expr) -> bool:
    """Whether an operand is made of integers of 8 bits, among others."""
    return any(read.dtype.itemsize == 1 and not read.dtype.is_float for read in loads(value))


def columns_beside(graph: Graph, call: TemplateCall, gemm: Reduction) -> int:
    """Columns of all GEMMs that multiply the same few rows as `call`, its own included; 0 for one alone, and
    where sizes are not known. They need nothing of each other, so they can fill a device together.
    """
    sizes = [n for n in map(axis_size, gemm.axes) if isinstance(n, int)]
    if len(gemm.axes) != 2 or len(sizes) != 2:
        return 0
    rows, columns, total = min(sizes), max(sizes), 0
    for node in graph.nodes:
        if not isinstance(node, TemplateCall) or node.op != call.op or len(node.args) != len(call.args):
            continue
        numel = graph.buffers[node.writes()[0]].numel
        shared = [a for a, b in zip(node.args, call.args, strict=True) if isinstance(a, View) and a == b]
        if isinstance(numel, int) and any(view.size[:1] == (rows,) for view in shared):
            total += numel // rows
    return total if total > columns else 0


def widened(gemm: Reduction, columns: int) -> Reduction:
    """A GEMM with so many columns, its longer side; as it is for 0."""
    if not columns:
        return gemm
    longest = max(gemm.axes, key=lambda a: bounds(axis_size(a))[1] or 0)
    wide = (axis(axis_name(a), columns) if a is longest else a for a in gemm.axes)
    return replace(gemm, axes=tuple(wide))


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
