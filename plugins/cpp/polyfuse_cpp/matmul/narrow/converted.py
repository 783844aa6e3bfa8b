"""Weights that are stored with fewer bits than what is multiplied, as they are or scaled."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.expr import Expr, loads
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.kit import is_multiple
from polyfuse.symbolic import IndexLike, axis_name, axis_size, coefficient, product
from polyfuse_cpp.isa import Isa, dot_instructions, has_matrix_registers
from polyfuse_cpp.matmul.problem import Matmul, byte_axis, operand_bytes
from polyfuse_cpp.matmul.touched import common_pitch

CONVERTED_ROWS = 256
"""Rows up to which a library is slower than tiles along the depth of what was converted for them."""

_PAIRED_ROWS = 96
"""The same where the library multiplies pairs of bf16, too."""

_TILED_ROWS, _UNTILED_ROWS = 32, 8
"""The same where the library has the machine's matrix registers: where the depth fills them, so that the
kernel uses them, too, and where it does not.
"""

_ROWS_FOR_TILES = 3
"""Rows from which matrix registers, which take as long for one as for 16, are faster than pairs."""

_TILE_STEPS = 32
"""Steps of the depth that a matrix register holds."""

_FEW = 4
"""Rows for which a weight that does not lie along the depth may be converted again and again."""


def is_converted(matmul: Matmul, isa: Isa) -> bool:
    """Whether operand B has bytes that lie along the depth, of which columns are converted for all rows."""
    vectors = isa.lanes > 1 and matmul.dtype.is_float
    # rows of the other operand are packed step by step where the depth is several axes
    several = len(matmul.moving_depth) > 1 and (matmul.a.index is None or matmul.a.step != 1)
    return vectors and not several and axis_of_bytes(matmul) >= 0


def axis_of_bytes(matmul: Matmul) -> int:
    """`byte_axis` of operand B, among the axes of the depth that have more than one point."""
    return operand_bytes(matmul.b.operand, matmul.depth, matmul.facts)


def multiplies_pairs(matmul: Matmul) -> bool:
    """Whether what is converted stays bf16, of which the machine multiplies pairs."""
    left = matmul.a
    in_place = left.index is not None and left.step == 1
    kinds = {left.memory, matmul.b.operand.dtype}
    return in_place and kinds == {DType.bf16} and "PF_DOT_BF16" in dot_instructions()


def fills_tiles(matmul: Matmul, isa: Isa) -> bool:
    """Whether columns that are converted are multiplied in matrix registers: the machine has some, rows lie
    one distance apart, and no step of the depth has to be padded.
    """
    if not (multiplies_pairs(matmul) and has_matrix_registers(isa) and is_converted(matmul, isa)):
        return False
    left = matmul.a
    assert left.index is not None
    whole = is_multiple(product(matmul.facts.sizes[name] for name in matmul.depth), _TILE_STEPS)
    apart = common_pitch(left.index, left.axes, matmul) > 0
    return whole and apart and matmul.extent(left.axes) >= _ROWS_FOR_TILES


def narrow_rows(matmul: Reduction, isa: Isa) -> tuple[int, int]:
    """Up to how many rows a matmul that converts its weight is generated, and up to how many as sums."""
    sizes = {axis_name(a): axis_size(a) for a in matmul.raxes if axis_size(a) != 1}
    kinds = {value.dtype for value in matmul.values}
    several = len(sizes) > 1
    few = (0, 0) if several else (_FEW, _FEW)
    if isa.lanes == 1 or not sizes or not all(kind and kind.is_float for kind in kinds):
        return few
    reads = ([(e.index, e.dtype.itemsize) for e in loads(value)] for value in matmul.values)
    if all(byte_axis(list(sizes), sizes, read) < 0 for read in reads):
        return few
    if several and not any(_is_contiguous(value, sizes) for value in matmul.values):
        return few
    pairs = kinds == {DType.bf16} and isa.lanes == 16 and "PF_DOT_BF16" in dot_instructions()
    # a sum for each element would round each number of the weight by itself, or step over numbers
    if pairs:
        if "PF_AMX" not in dot_instructions():
            return _PAIRED_ROWS, 0
        whole = is_multiple(product(sizes.values()), _TILE_STEPS)
        return (_TILED_ROWS if whole else _UNTILED_ROWS), 0
    in_registers = DType.f64 not in kinds and any(map(_is_byte, matmul.values))
    return CONVERTED_ROWS, 0 if several or in_registers else 1


def _is_byte(value: Expr) -> bool:
    """Whether an operand is integers of one byte to which nothing is done but a conversion."""
    while value.op == "cast" and value.dtype.is_float:
        value = value.args[0]
    return value.op == "load" and value.dtype in (DType.i8, DType.u8)


def _is_contiguous(value: Expr, sizes: Mapping[str, IndexLike]) -> bool:
    """Whether an operand is read as it is, step by step."""
    step: IndexLike = 1
    for name in reversed(list(sizes)):
        if value.op != "load" or value.args or coefficient(value.index, name) != step:
            return False
        step = step * sizes[name]
    return True
