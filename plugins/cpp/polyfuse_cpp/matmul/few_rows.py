"""Linear layers of few rows, whose time is that of reading the weight once."""

from __future__ import annotations

from typing import Final

from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis_name, axis_size, bounds, coefficient, free_axes
from polyfuse_cpp.isa import Isa, dot_instructions

_MOST_ROWS: Final = 8
"""Rows up to which the library took longer: it packs operands, or uses half of the vectors."""

_UNBOUNDED: Final = 1 << 62

_PAIRED_LANES: Final = 16
"""Numbers of a register of the instruction set whose pairs of bf16 are multiplied."""

_MOST_PAIRED_ROWS: Final = 4
"""The same of bf16 on a CPU that multiplies pairs: the library lays the weight out at each call for matrix
registers, and without these reads it at half of the memory's rate. More rows are as fast in tiles.
"""


def streaming_parts(matmul: Reduction, isa: Isa) -> int:
    """1 where a kernel that reads both operands along the depth is faster than the library, else 0. Of rows
    whose number is known only at run time, the most that there can be count.
    """
    if isa.lanes == 1 or matmul.kind != "dot" or len(matmul.axes) != 2 or len(matmul.raxes) != 1:
        return 0
    sizes = [axis_size(axis) for axis in (*matmul.axes, *matmul.raxes)]
    counts = [_most(sizes[0]), *(size for size in sizes[1:] if isinstance(size, int))]
    plain = all(value.op == "load" and not value.args for value in matmul.values)
    most = _most_rows({value.dtype for value in matmul.values}, isa) if plain else 0
    if len(counts) != len(sizes) or counts[-1] < isa.lanes or counts[0] > most:
        return 0
    # one number is no matrix
    if max(counts[:2]) == 1:
        return 0
    outer, inside = {axis_name(a) for a in matmul.axes}, axis_name(matmul.raxes[0])
    along = [outer.intersection(free_axes(value.index)) for value in matmul.values]
    if any(len(names) > 1 for names in along) or along[0] == along[1]:
        return 0
    return int(all(coefficient(value.index, inside) == 1 for value in matmul.values))


def _most(size: IndexLike) -> int:
    """The greatest value of a size."""
    high = bounds(size)[1]
    return _UNBOUNDED if high is None else high


def _most_rows(kinds: set[DType | None], isa: Isa) -> int:
    """Up to how many rows of some types a kernel is faster."""
    if kinds == {DType.f32}:
        return _MOST_ROWS
    pairs = kinds == {DType.bf16} and isa.lanes == _PAIRED_LANES and "PF_DOT_BF16" in dot_instructions()
    return _MOST_PAIRED_ROWS if pairs else 0
