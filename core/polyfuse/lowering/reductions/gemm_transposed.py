"""GEMMs of few rows whose rows are stored transposed first: what a step of the depth needs lies side by side
then, so that a kernel may read the steps in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Final

from polyfuse.ir.expr import Expr, const, load
from polyfuse.ir.nodes import Buffer, Pointwise
from polyfuse.ir.types import DType
from polyfuse.lowering.indexing.conditions import less, masked
from polyfuse.lowering.reductions.gemm_loops import GemmLoops
from polyfuse.plugin.target_info import TargetInfo
from polyfuse.symbolic import axis, axis_name, axis_size, coefficient, free_axes, substitute

_LAUNCHES: Final = 8
"""Of the time in which a weight is read, at least: one may be needed that transposes rows."""
_STEPS: Final = 64
"""Of which the depth has a multiple: those that an order is of."""


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


def with_rows_transposed(
    form: GemmLoops, info: TargetInfo, buffers: Mapping[str, Buffer]
) -> TransposedRows | None:
    """A GEMM that reads its rows transposed, where its other operand is a weight of signed bytes that are
    only converted, and is read for longer than some launches take. None for others.
    """
    gemm = form.gemm
    rows = [value for value in gemm.values if value.op == "load" and not value.args]
    if gemm.kind != "dot" or len(rows) != 1 or not all(map(_is_converted, gemm.values)):
        return None
    value = rows[0]
    own = [a for a in gemm.axes if axis_name(a) in free_axes(value.index)]
    sizes = [axis_size(a) for a in (*own, *gemm.raxes, *gemm.axes)]
    counts = [n for n in sizes if isinstance(n, int)]
    if (len(own), len(gemm.raxes)) != (1, 1) or len(counts) != len(sizes):
        return None
    count, depth, results = counts[0], counts[1], prod(counts[2:])
    fewest, most = info.transposed_rows
    if not fewest <= count <= most or results // count * depth < _LAUNCHES * info.launch_bytes:
        return None
    if depth % _STEPS or coefficient(value.index, axis_name(gemm.raxes[0])) != 1:
        return None
    lines, step = 1 << (count - 1).bit_length(), gemm.raxes[0]
    k, row, name = axis("i0", depth), axis("i1", lines), f"{form.accumulator.name}_rows"
    read = load(value.buffer, substitute(value.index - step, {axis_name(own[0]): row}) + k, value.dtype)
    copy = Pointwise(
        name=f"{gemm.name}_rows",
        axes=(k, row),
        raxes=(),
        output=name,
        index=k * lines + row,
        value=masked(read, less(row, count), const(0, value.dtype)),
    )
    moved = load(name, step * lines + own[0], value.dtype)
    values = tuple(moved if found is value else found for found in gemm.values)
    source = buffers[value.buffer]
    buffer = replace(source, name=name, kind="temp", size=(depth, lines), stride=(lines, 1))
    return TransposedRows(replace(form, gemm=replace(gemm, values=values)), copy, buffer)


def _is_converted(value: Expr) -> bool:
    """Whether an operand is bf16 as it is stored, or signed bytes that are only converted to that."""
    stem = value
    while stem.op == "cast":
        stem = stem.args[0]
    is_load = stem.op == "load" and not stem.args and value.dtype is DType.bf16
    return is_load and (stem.dtype is DType.i8 or stem is value)
