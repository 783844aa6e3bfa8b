"""GEMMs of few rows whose rows are stored transposed first: what a step of the depth needs lies side by side
then, so that a kernel may read the steps in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from polyfuse.ir.expr import const, load
from polyfuse.ir.nodes import Buffer, Pointwise
from polyfuse.lowering.indexing.conditions import less, masked
from polyfuse.lowering.reductions.gemm_loops import GemmLoops
from polyfuse.symbolic import axis, axis_name, axis_size, coefficient, free_axes, substitute


@dataclass(frozen=True)
class TransposedRows:
    """A GEMM and what it reads.

    Attributes:
        form: the GEMM.
        copy: what stores the rows transposed: with it, whatever makes them may become one loop.
        buffer: of (depth, rows), to which rows of zeros are added.
    """

    form: GemmLoops
    copy: Pointwise
    buffer: Buffer


def with_rows_transposed(form: GemmLoops, rows: int, buffers: Mapping[str, Buffer]) -> TransposedRows | None:
    """A GEMM whose one operand that is read as it is, contiguous along the depth, is read from so many
    transposed rows. None where there is none, or where it has more.
    """
    gemm = form.gemm
    plain = [k for k, value in enumerate(gemm.values) if value.op == "load" and not value.args]
    if len(plain) != 1:
        return None
    value = gemm.values[plain[0]]
    own = [a for a in gemm.axes if axis_name(a) in free_axes(value.index)]
    sizes = [axis_size(a) for a in (*own, *gemm.raxes)]
    steps = [coefficient(value.index, axis_name(a)) for a in gemm.raxes]
    counts, strides = ([n for n in found if isinstance(n, int)] for found in (sizes, steps))
    if len(own) != 1 or len(counts) != len(sizes) or len(strides) != len(steps) or counts[0] > rows:
        return None
    depth = prod(counts[1:])
    if sum((n - 1) * step for n, step in zip(counts[1:], strides, strict=True)) != depth - 1:
        return None
    step = sum((a * s for a, s in zip(gemm.raxes, strides, strict=True)), start=gemm.raxes[0] * 0)
    k, row, name = axis("i0", depth), axis("i1", rows), f"{form.accumulator.name}_rows"
    read = load(value.buffer, substitute(value.index - step, {axis_name(own[0]): row}) + k, value.dtype)
    copy = Pointwise(
        name=f"{gemm.name}_rows",
        axes=(k, row),
        raxes=(),
        output=name,
        index=k * rows + row,
        value=masked(read, less(row, counts[0]), const(0, value.dtype)),
    )
    moved = load(name, step * rows + own[0], value.dtype)
    values = (*gemm.values[: plain[0]], moved, *gemm.values[plain[0] + 1 :])
    source = buffers[value.buffer]
    buffer = replace(source, name=name, kind="temp", size=(depth, rows), stride=(rows, 1))
    return TransposedRows(replace(form, gemm=replace(gemm, values=values)), copy, buffer)
