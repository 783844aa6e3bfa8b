"""Weights that are stored with fewer bits than what is multiplied, as they are or scaled."""

from __future__ import annotations

from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis_name, axis_size, coefficient, free_axes
from polyfuse_cpp.isa import Isa, dot_instructions
from polyfuse_cpp.matmul.problem import Matmul, has_bytes

__all__ = ["CONVERTED_ROWS", "is_converted", "multiplies_pairs", "narrow_rows"]

CONVERTED_ROWS = 256
"""Rows up to which a library is slower than tiles along the depth of what was converted for them."""

_PAIRED_ROWS = 96
"""The same where the library multiplies pairs of bf16, too."""

_FEW = 4
"""Rows for which a weight that does not lie along the depth may be converted again and again."""


def is_converted(matmul: Matmul, isa: Isa) -> bool:
    """Whether operand B has bytes that lie along the depth, of which columns are converted for all rows."""
    vectors = isa.lanes > 1 and matmul.dtype.is_float
    return vectors and has_bytes(matmul.b.operand, matmul.depth, matmul.facts)


def multiplies_pairs(matmul: Matmul) -> bool:
    """Whether what is converted stays bf16, of which the machine multiplies pairs."""
    left = matmul.a
    in_place = left.index is not None and left.step == 1
    kinds = {left.memory, matmul.b.operand.dtype}
    return in_place and kinds == {DType.bf16} and "PF_DOT_BF16" in dot_instructions()


def narrow_rows(matmul: Reduction, isa: Isa) -> tuple[int, int]:
    """Up to how many rows a matmul that converts its weight is generated, and up to how many as sums."""
    moving = [axis_name(a) for a in matmul.raxes if axis_size(a) != 1]
    kinds = {value.dtype for value in matmul.values}
    if isa.lanes == 1 or len(moving) != 1 or not all(kind and kind.is_float for kind in kinds):
        return _FEW, _FEW
    read = [e for e in loads(*matmul.values) if moving[0] in free_axes(e.index)]
    if not all(coefficient(e.index, moving[0]) == 1 for e in read):
        return _FEW, _FEW
    pairs = kinds == {DType.bf16} and isa.lanes == 16 and "PF_DOT_BF16" in dot_instructions()
    # a sum for each element would round each number of the weight by itself
    return (_PAIRED_ROWS, 0) if pairs else (CONVERTED_ROWS, 1)
