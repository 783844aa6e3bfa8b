"""Matmuls of signed bytes whose few rows are stored transposed: each thread of the instruction reads sixteen
bytes of its own then, and the rows are read in the order in which that gives numbers.
"""

from __future__ import annotations

from math import prod
from typing import Final

from polyfuse.ir.expr import Expr
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis_size
from polyfuse_triton.matmul.narrow import WORDS
from polyfuse_triton.target import FEW_ROWS, STREAMING, Target
from polyfuse_triton.tiling.plan import power_of_two

_FEWEST_ROWS: Final = 17
"""From which on four warps multiply together."""
_FEWEST_BYTES: Final = 32 << 20
"""Of a weight, from which on more is gained than a launch, which transposes rows that nobody makes."""


def transposed_rows(matmul: Reduction, target: Target) -> int:
    """How many rows are stored so (`Backend.transposed_rows`); 0 where bytes are more than converted."""
    sizes = [axis_size(a) for a in (*matmul.axes, *matmul.raxes)]
    counts = [n for n in sizes if isinstance(n, int)]
    if target.arch < STREAMING or matmul.kind != "dot" or len(counts) != len(sizes) or len(sizes) != 3:
        return 0
    rows, columns = sorted(counts[:2])
    if (
        not _FEWEST_ROWS <= rows <= FEW_ROWS
        or prod((columns, counts[2])) < _FEWEST_BYTES
        or counts[2] % WORDS
    ):
        return 0
    if any(value.dtype is not DType.bf16 for value in matmul.values):
        return 0
    stems = [_stem(value) for value in matmul.values]
    are_loads = all(stem.op == "load" and not stem.args for stem in stems)
    return power_of_two(rows) if are_loads and sum(s.dtype is DType.i8 for s in stems) == 1 else 0


def _stem(value: Expr) -> Expr:
    """What is only converted."""
    while value.op == "cast":
        value = value.args[0]
    return value
