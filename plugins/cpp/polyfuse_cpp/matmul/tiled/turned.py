"""Matmuls of bf16 whose right operand is read as it is, its columns as rows of matrix registers."""

from __future__ import annotations

from typing import Final

from polyfuse.ir.nodes import Reduction
from polyfuse.kit import is_multiple
from polyfuse.symbolic import axis_name, axis_size, coefficient, product
from polyfuse_cpp.matmul.paths import TILE
from polyfuse_cpp.matmul.problem import Matmul
from polyfuse_cpp.matmul.touched import common_pitch

TURNED_ROWS, FAR_TURNED_ROWS = range(5, 513), range(5, 1025)
"""Rows for which packing rows and transposing sums take less time than packing the weight: one that stays
in a near cache, and one that does not.
"""

STEPS: Final = 32
"""Steps of the depth in a register."""

AT_ONCE_ROWS: Final = 128
"""Rows up to which all of the depth is added up in one pass."""


def turns(matmul: Matmul) -> bool:
    """Whether both operands can be read along the depth: no step has to be padded, nor a column."""
    left, right, sizes = matmul.a, matmul.b, matmul.facts.sizes
    *outer, last = (sizes[name] for name in right.axes)
    if left.step != 1 or right.step != 1 or left.index is None or any(size != 1 for size in outer):
        return False
    whole = is_multiple(product(sizes[name] for name in matmul.depth), STEPS)
    apart = isinstance(right.apart, int) and right.apart > 0
    pitch = common_pitch(left.index, left.axes, matmul)
    return whole and apart and pitch > 0 and is_multiple(last, TILE)


def lies_along_depth(matmul: Reduction) -> bool:
    """Whether steps of both operands of a linear layer that is no kernel yet lie side by side."""
    plain = all(value.op == "load" and not value.args for value in matmul.values)
    inside = axis_name(matmul.raxes[0])
    return plain and all(coefficient(value.index, inside) == 1 for value in matmul.values)


def may_turn(matmul: Reduction) -> bool:
    """The same as `turns` of a linear layer that is no kernel yet: whether steps of both operands lie side by
    side, and how many of them and columns there are.
    """
    columns, steps = axis_size(matmul.axes[1]), axis_size(matmul.raxes[0])
    if not lies_along_depth(matmul) or not isinstance(columns, int) or not isinstance(steps, int):
        return False
    return columns % TILE == 0 and steps % STEPS == 0
