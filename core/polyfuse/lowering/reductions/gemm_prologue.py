"""GEMMs that compute their operands: what is cheap to compute from other tensors need not be stored
first, such as a weight that is converted, dequantised or scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from polyfuse.ir.expr import Expr, loads, reindex, walk
from polyfuse.ir.graph import Graph, reads
from polyfuse.ir.nodes import Pointwise, TemplateCall
from polyfuse.lowering.reductions.gemm_loops import GemmLoops
from polyfuse.lowering.reductions.gemm_split import axes_by_strides
from polyfuse.symbolic import (
    Index,
    IndexLike,
    atoms,
    axis_name,
    axis_size,
    coefficient,
    free_axes,
    substitute,
)

# Operations that are repeated for every tile that reads an element.
_MOST_OPS: Final = 12


def with_prologue(
    graph: Graph, call: TemplateCall, form: GemmLoops, *, chained: bool = False, only: int | None = None
) -> tuple[GemmLoops, tuple[str, ...]] | None:
    """A GEMM that computes its operands itself, and the names of the nodes that it makes superfluous; None
    where no operand is made by a cheap loop for this GEMM alone.

    Args:
        chained: also with what makes what such a loop reads, as far as it is for it alone, where all that is
            read along the depth then are bytes. What a loop of the chain stores in fewer bits is not rounded
            for the next one. The depth is divided into the axes of these loops, as in a weight of four bits
            that is scaled in groups.
        only: the operand that is computed, where the other one is read as it is stored.
    """
    if not any(_producer(graph, call, read, call.name, chained) for read in loads(*form.gemm.values)):
        return None
    if not chained:
        return _absorbing(graph, call, form, form.gemm.values, (False, False), only)
    split = axes_by_strides(form, _strides(graph, call, form.gemm.values, call.name))
    deep = tuple(
        _reads_bytes(_Inlined(graph, call, True).value(value, call.name), split.gemm.raxes)
        for value in split.gemm.values
    )
    return _absorbing(graph, call, split, split.gemm.values, deep, only) if any(deep) else None


def _absorbing(
    graph: Graph,
    call: TemplateCall,
    form: GemmLoops,
    operands: Sequence[Expr],
    deep: Sequence[bool],
    only: int | None,
) -> tuple[GemmLoops, tuple[str, ...]] | None:
    absorbed: dict[str, None] = {}
    values = []
    for position, (operand, chained) in enumerate(zip(operands, deep, strict=True)):
        if only not in (None, position):
            values.append(operand)
            continue
        inlined = _Inlined(graph, call, chained)
        values.append(inlined.value(operand, call.name))
        absorbed |= inlined.absorbed
    if not absorbed or _still_read(graph, values, absorbed):
        return None
    return replace(form, gemm=replace(form.gemm, values=tuple(values))), tuple(absorbed)


class _Inlined:
    """Values with what makes them in place of loads of that. `absorbed`: the nodes that made it."""

    def __init__(self, graph: Graph, call: TemplateCall, chained: bool) -> None:
        self.graph, self.call, self.chained = graph, call, chained
        self.absorbed: dict[str, None] = {}
        self._memo: dict[tuple[Expr, str], Expr] = {}

    def value(self, expr: Expr, reader: str) -> Expr:
        """`expr`, which the node `reader` computes."""
        found = self._memo.get((expr, reader))
        if found is None:
            found = self._memo[expr, reader] = self._changed(expr, reader)
        return found

    def _changed(self, expr: Expr, reader: str) -> Expr:
        if expr.op == "load" and not expr.args:
            return self._made(expr, reader) or expr
        if self.chained and expr.op == "cast" and expr.args[0].op == "load" and expr.args[0].dtype.is_storage:
            made = self._made(expr.args[0], reader)
            if made is not None and made.op == "cast" and made.args[0].dtype is expr.dtype:
                return made.args[0]
        args = tuple(self.value(a, reader) for a in expr.args)
        return expr if args == expr.args else Expr(expr.op, args, expr.dtype, expr.payload)

    def _made(self, operand: Expr, reader: str) -> Expr | None:
        if operand.op != "load" or operand.args:
            return None
        producer = _producer(self.graph, self.call, operand, reader, self.chained)
        value = _computed(producer, operand) if producer is not None else None
        if producer is None or value is None:
            return None
        self.absorbed[producer.name] = None
        return self.value(value, producer.name) if self.chained else value


def _reads_bytes(value: Expr, depth: Sequence[Index]) -> bool:
    """Whether all that is read step by step are bytes: what each group of steps has apart."""
    names, read = (
        [axis_name(a) for a in depth],
        [(e.dtype.itemsize, free_axes(e.index)) for e in loads(value)],
    )
    moving = [k for k, name in enumerate(names) for size, own in read if size == 1 and name in own]
    inner = set(names[max(moving, default=0) :])
    return bool(moving) and all(size == 1 for size, own in read if inner.intersection(own))


def _strides(graph: Graph, call: TemplateCall, values: Sequence[Expr], reader: str) -> set[int]:
    """Strides of the axes of the loops that make some values, one after the other."""
    found: set[int] = set()
    for operand in loads(*values):
        producer = _producer(graph, call, operand, reader, True)
        if producer is None:
            continue
        steps = (coefficient(producer.index, axis_name(a)) for a in producer.axes)
        found |= {step for step in steps if isinstance(step, int)}
        found |= _strides(graph, call, (producer.value,), producer.name)
    return found


def _producer(
    graph: Graph, call: TemplateCall, operand: Expr, reader: str, chained: bool
) -> Pointwise | None:
    """The cheap loop that makes what a node reads, if nobody else wants its result."""
    name = operand.buffer
    if operand.args or graph.buffers[name].kind != "temp" or graph.is_output(name):
        return None
    uses = graph.uses
    writers, end = uses.writers.get(name, ()), uses.position[call.name]
    if len(writers) != 1 or list(uses.readers[name]) != [uses.position[reader]]:
        return None
    at, producer = writers[0], graph.nodes[writers[0]]
    if not isinstance(producer, Pointwise) or not _is_cheap(producer, chained):
        return None
    needed = reads(producer)
    if uses.written_between(needed, at, end):
        return None
    # what follows another GEMM is rather done together with that one
    made = (i for name in needed for i in uses.writers.get(name, ()) if i < at)
    return None if any(isinstance(graph.nodes[i], TemplateCall) for i in made) else producer


def _is_cheap(producer: Pointwise, chained: bool) -> bool:
    """Whether a loop is worth repeating; where loops are chained, also if it chooses which part of a byte it
    takes.
    """
    found = list(walk(producer.value))
    if any(e.op == "rand" or (e.op == "load" and e.args and (e.indirect or not chained)) for e in found):
        return False
    return sum(1 for e in found if e.args) <= (2 if chained else 1) * _MOST_OPS


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


def _still_read(graph: Graph, values: Sequence[Expr], absorbed: Mapping[str, None]) -> bool:
    """Whether the GEMM reads what it computes also as it was stored."""
    gone = {w for name in absorbed for w in graph.nodes[graph.uses.position[name]].writes()}
    return any(load.buffer in gone for load in loads(*values))
