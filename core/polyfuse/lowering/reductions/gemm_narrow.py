"""GEMMs whose time is that of reading a weight once: those with few rows of a weight that is converted or
dequantised, where a wide copy costs more than the GEMM, and products of one row with a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from polyfuse.ir.expr import Expr, apply, cast, loads, walk
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Reduction, TemplateCall
from polyfuse.lowering.reductions.gemm_loops import GemmLoops
from polyfuse.lowering.reductions.gemm_prologue import with_prologue
from polyfuse.symbolic import axis_name, axis_size, bounds, coefficient, free_axes, product


@dataclass(frozen=True)
class NarrowGemm:
    """A GEMM that reads an operand as it is stored.

    Attributes:
        loops: with the conversion; those of few rows are a sum of products, which needs no tiles.
        removed: names of the nodes whose work they do too.
    """

    loops: GemmLoops
    removed: tuple[str, ...]


def reading_less(
    graph: Graph, call: TemplateCall, form: GemmLoops, limits: Callable[[Reduction], tuple[int, int]]
) -> NarrowGemm | None:
    """`with_prologue`, where at most three quarters of the bytes are read then. `limits`: up to how many rows
    that pays (`Backend.narrow_weight_rows`).
    """
    for chained in (True, False):
        # an activation before the rows would be computed again for each column: then the weight alone
        for only in (None, 0, 1):
            more = with_prologue(graph, call, form, chained=chained, only=only)
            found = None if more is None else _narrow(graph, form, *more, limits)
            if found is not None:
                return found
    return None


def _narrow(
    graph: Graph,
    form: GemmLoops,
    larger: GemmLoops,
    removed: tuple[str, ...],
    limits: Callable[[Reduction], tuple[int, int]],
) -> NarrowGemm | None:
    before, after = (
        {e.buffer: e.dtype.itemsize for e in loads(*gemm.values)} for gemm in (form.gemm, larger.gemm)
    )
    gone = {name: size for name, size in before.items() if name not in after}
    read = {name: size for name, size in after.items() if name not in before}
    products = product(axis_size(axis) for axis in (*form.gemm.axes, *form.gemm.raxes))
    counts = {name: graph.buffers[name].numel for name in (*gone, *read)}
    elements = {name: count for name, count in counts.items() if isinstance(count, int)}
    most = bounds(products)[1]
    if most is None or len(elements) != len(counts):
        return None
    wide, narrow = (sum(elements[name] * size for name, size in own.items()) for own in (gone, read))
    rows = most // min(elements[name] for name in gone)
    if 4 * narrow > 3 * wide:
        return None
    limit, sums = limits(larger.gemm)
    if rows > limit:
        return None
    return NarrowGemm(_as_sum(larger) if rows <= sums else larger, removed)


def matvec(graph: Graph, form: GemmLoops) -> GemmLoops | None:
    """The sum of products that a GEMM with one row is, if the matrix is contiguous along the sum: such a loop
    streams it, and fuses with its neighbours like any other reduction. None for other GEMMs.
    """
    if form.gemm.kind not in ("dot", "dot_tf32") or len(form.gemm.raxes) != 1:
        return None
    values, depth = form.gemm.values, form.gemm.raxes[0]
    if any(value.op != "load" or value.args for value in values):
        return None
    products = product(axis_size(axis) for axis in (*form.gemm.axes, depth))
    counts = [graph.buffers[value.buffer].numel for value in values]
    elements = [n for n in counts if isinstance(n, int)]
    if not isinstance(products, int) or len(elements) != len(counts):
        return None
    matrix = values[elements.index(max(elements))]
    steps = coefficient(matrix.index, axis_name(depth))
    if products > max(elements) or axis_size(depth) == 1 or steps != 1:
        return None
    return _as_sum(form)


def inner_products(form: GemmLoops) -> GemmLoops | None:
    """The sums of products that a batch of rows times columns is, of which no two share an operand; None for
    other GEMMs.
    """
    long = {axis_name(axis) for axis in form.gemm.axes if axis_size(axis) != 1}
    left, right = (long & _axes_of(value) for value in form.gemm.values)
    return _as_sum(form) if left == right else None


def _axes_of(value: Expr) -> set[str]:
    """The axes along which a value varies."""
    indices = [expr.index for expr in walk(value) if expr.op in ("load", "index")]
    return {name for index in indices for name in free_axes(index)}


def _as_sum(form: GemmLoops) -> GemmLoops:
    dtype = form.accumulator.dtype
    assert dtype is not None
    left, right = (cast(value, dtype) for value in form.gemm.values)
    gemm = replace(form.gemm, kind="sum", values=(apply("mul", left, right),))
    return replace(form, gemm=gemm)
