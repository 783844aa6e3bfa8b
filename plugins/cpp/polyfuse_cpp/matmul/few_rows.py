"""Linear layers of few rows, whose time is that of reading the weight once."""

from __future__ import annotations

from typing import Final

from polyfuse.ir.expr import Expr
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis_name, axis_size, coefficient, free_axes
from polyfuse_cpp.isa import Isa

_MOST_ROWS: Final = 8
"""Rows up to which the library took longer: it packs operands, or uses half of the vectors."""


def streaming_parts(matmul: Reduction, isa: Isa) -> int:
    """1 where a kernel that reads both operands along the depth is faster than the library, else 0."""
    if isa.lanes == 1 or matmul.kind != "dot" or len(matmul.axes) != 2 or len(matmul.raxes) != 1:
        return 0
    sizes = [axis_size(axis) for axis in (*matmul.axes, *matmul.raxes)]
    counts = [size for size in sizes if isinstance(size, int)]
    if len(counts) != len(sizes) or counts[-1] < isa.lanes or counts[0] > _MOST_ROWS:
        return 0
    # one number is no matrix
    if max(counts[:2]) == 1 or not all(map(_is_plain, matmul.values)):
        return 0
    outer, inside = {axis_name(a) for a in matmul.axes}, axis_name(matmul.raxes[0])
    along = [outer.intersection(free_axes(value.index)) for value in matmul.values]
    if any(len(names) > 1 for names in along) or along[0] == along[1]:
        return 0
    return int(all(coefficient(value.index, inside) == 1 for value in matmul.values))


def _is_plain(value: Expr) -> bool:
    return value.op == "load" and not value.args and value.dtype is DType.f32
