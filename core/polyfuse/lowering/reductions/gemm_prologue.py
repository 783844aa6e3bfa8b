"""GEMMs that compute their operands: what is cheap to compute from other tensors need not be stored
first, such as a weight that is converted, dequantised or scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from polyfuse.ir.expr import Expr, loads, reindex, rewrite, walk
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Pointwise, TemplateCall
from polyfuse.lowering.reductions.gemm_loops import GemmLoops
from polyfuse.symbolic import Index, IndexLike, atoms, axis_name, axis_size, coefficient, substitute

__all__ = ["with_prologue"]


# Operations that are repeated for every tile that reads an element.
_MOST_OPS: Final = 12


def with_prologue(
    graph: Graph, call: TemplateCall, form: GemmLoops
) -> tuple[GemmLoops, tuple[str, ...]] | None:
    """A GEMM that computes its operands itself, and the names of the nodes that it makes superfluous; None
    where no operand is made by a cheap loop for this GEMM alone.
    """
    absorbed: dict[str, None] = {}

    def change(expr: Expr) -> Expr:
        if expr.op != "load":
            return expr
        producer = _producer(graph, call, expr)
        value = _computed(producer, expr) if producer is not None else None
        if producer is None or value is None:
            return expr
        absorbed[producer.name] = None
        return value

    values = tuple(rewrite(value, change) for value in form.gemm.values)
    if not absorbed or _still_read(graph, call, values, absorbed):
        return None
    return replace(form, gemm=replace(form.gemm, values=values)), tuple(absorbed)


def _producer(graph: Graph, call: TemplateCall, operand: Expr) -> Pointwise | None:
    """The cheap loop that makes an operand, if nobody else wants its result."""
    name = operand.buffer
    if operand.args or graph.buffers[name].kind != "temp" or name in graph.output_buffers():
        return None
    uses = graph.uses
    writers, end = uses.writers.get(name, ()), uses.position[call.name]
    if len(writers) != 1 or list(uses.readers[name]) != [end]:
        return None
    at, producer = writers[0], graph.nodes[writers[0]]
    if not isinstance(producer, Pointwise) or not _is_cheap(producer):
        return None
    needed = reads(producer)
    if uses.written_between(needed, at, end):
        return None
    # what follows another GEMM is rather done together with that one
    made = (i for name in needed for i in uses.writers.get(name, ()) if i < at)
    return None if any(isinstance(graph.nodes[i], TemplateCall) for i in made) else producer


def _is_cheap(producer: Pointwise) -> bool:
    found = list(walk(producer.value))
    if any(e.op == "rand" or (e.op == "load" and e.args) for e in found):
        return False
    return sum(1 for e in found if e.args) <= _MOST_OPS


def _computed(producer: Pointwise, operand: Expr) -> Expr | None:
    """The value that a loop stored where `operand` reads; None where that cannot be said simply."""
    if producer.value.dtype is not operand.dtype:
        return None
    offset: IndexLike = operand.index
    found = _point(producer, offset)
    if found is None or substitute(producer.index, found) != offset:
        return None
    value = reindex(producer.value, found)
    if any(a.kind in ("floordiv", "mod") for load in loads(value) for a in atoms(load.index)):
        return None
    return value


def _point(producer: Pointwise, offset: IndexLike) -> Mapping[str, IndexLike] | None:
    """The point at which a loop writes an offset of a dense result: each axis counts blocks of its stride."""
    found: dict[str, IndexLike] = {}
    steps: list[tuple[Index, IndexLike]] = []
    for axis in producer.axes:
        step = coefficient(producer.index, axis_name(axis))
        if axis_size(axis) == 1:
            found[axis_name(axis)] = 0
        elif step is None or step == 0:
            return None
        else:
            steps.append((axis, step))
    outer = _outermost(steps)
    for axis, step in steps:
        block = offset // step
        found[axis_name(axis)] = block if axis is outer else block % axis_size(axis)
    return found


def _outermost(steps: Sequence[tuple[Index, IndexLike]]) -> Index | None:
    """The axis with the largest stride."""
    sizes = [(axis, step) for axis, step in steps]
    known = [(step, axis) for axis, step in sizes if isinstance(step, int)]
    if len(known) == len(sizes):
        return max(known, key=lambda pair: pair[0])[1] if known else None
    # with sizes that vary, the outermost axis stands first
    return sizes[0][0]


def _still_read(
    graph: Graph, call: TemplateCall, values: Sequence[Expr], absorbed: Mapping[str, None]
) -> bool:
    """Whether the GEMM reads what it computes also as it was stored."""
    gone = {w for name in absorbed for w in graph.nodes[graph.uses.position[name]].writes()}
    return any(load.buffer in gone for load in loads(*values))
