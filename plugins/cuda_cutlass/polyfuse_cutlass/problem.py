"""A contraction as the hardware sees it: two matrices in memory, and what is done with the result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.statements import Statement
from polyfuse.ir.types import DType
from polyfuse.kit import affine, with_safe_names
from polyfuse.kit.contraction import Contraction, Operand, match
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size

_SAFE_NAMES = {
    **dict.fromkeys(("arg", "row", "axis"), re.compile(r"[a-z]{1,4}[0-9]+")),
    "val": re.compile(r"[A-Za-z0-9_]+"),
}
"""Names that are no keyword, function or macro; names of values get a letter in front."""
COPY_ALIGNMENT = 16
"""Bytes of which the copy engine wants addresses and strides to be multiples."""
MOST_BATCHES = 3
"""Batch axes of a matrix with which the copy engine deals."""


@dataclass(frozen=True)
class Matrix:
    """One operand as it lies in memory; or the result, whose columns are described as the depth.

    Attributes:
        arg: the kernel's argument.
        dtype: of its elements.
        offset: of its first element.
        row: step from a row (or column) of the result to the next; 0 where the result has but one.
        depth: step from an element to the next that is multiplied.
        batch: step along each batch axis.
    """

    arg: KernelArg
    dtype: DType
    offset: IndexLike
    row: IndexLike
    depth: IndexLike
    batch: tuple[IndexLike, ...]

    @property
    def along(self) -> bool:
        """Whether neighbours in memory belong to different rows, not to different depths."""
        return self.depth != 1

    @property
    def batches(self) -> tuple[int, ...]:
        """Numbers of the batch axes along which it varies."""
        return tuple(i for i, step in enumerate(self.batch) if step != 0)


@dataclass(frozen=True)
class Problem:
    """A contraction with at most one row axis, one column axis and one depth axis.

    Attributes:
        kernel: where it comes from.
        batch: axes along which matrices are independent, outermost first.
        rows, columns: axes of the result, None where it has but one row or column.
        depth: the axis that is added up.
        left, right: the operands; `left` goes with the rows.
        kind: `dot`, `dot_tf32` or `dot_fast`.
        accumulator: the name of the sum in the epilogue.
        dtype: its type.
        epilogue: statements that use it.
        hints: example extents by axis name.
    """

    kernel: Kernel
    batch: tuple[Index, ...]
    rows: Index | None
    columns: Index | None
    depth: Index
    left: Matrix
    right: Matrix
    kind: str
    accumulator: str
    dtype: DType
    epilogue: tuple[Statement, ...]
    hints: Mapping[str, int]

    @property
    def swapped(self) -> Problem:
        """The same with rows and columns exchanged."""
        return Problem(
            self.kernel,
            self.batch,
            self.columns,
            self.rows,
            self.depth,
            self.right,
            self.left,
            self.kind,
            self.accumulator,
            self.dtype,
            self.epilogue,
            self.hints,
        )

    @property
    def promotes(self) -> bool:
        """Whether sums must be added up outside of the multipliers, which keep too few bits of them."""
        return self.left.dtype.is_eight_bit_float and self.kind != "dot_fast"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Example extents: batch, rows, columns, depth."""
        batch = 1
        for one in self.batch:
            batch *= self.hints[axis_name(one)]
        rows, columns = (1 if a is None else self.hints[axis_name(a)] for a in (self.rows, self.columns))
        return batch, rows, columns, self.hints[axis_name(self.depth)]


def problem_of(kernel: Kernel) -> Problem:
    """`kernel` as a problem; raises `UnsupportedError` where it is none."""
    kernel = with_safe_names(kernel, _SAFE_NAMES)
    found = match(kernel)
    if found is None:
        raise UnsupportedError(f"{kernel.name} is no matrix multiplication", "another backend computes it")
    if len(found.depth) != 1:
        raise UnsupportedError(f"{kernel.name} adds up over {len(found.depth)} axes", _OTHERS)
    rows, row = _innermost(found, found.rows)
    columns, column = _innermost(found, found.columns)
    batch = (*found.batch, *rows, *columns)
    ordered = tuple(a for a in kernel.axes if any(a is b for b in batch))
    args = {arg.name: arg for arg in kernel.args}
    left = _matrix(found, found.left, args, row, ordered)
    right = _matrix(found, found.right, args, column, ordered)
    return Problem(
        kernel,
        ordered,
        row,
        column,
        found.depth[0],
        left,
        right,
        found.kind,
        found.accumulator,
        found.dtype,
        found.epilogue,
        found.hints,
    )


_OTHERS = "another backend, or the library, computes it"


def _innermost(found: Contraction, axes: tuple[Index, ...]) -> tuple[tuple[Index, ...], Index | None]:
    """The axes that count as batches, and the longest, which is tiled."""
    if not axes:
        return (), None
    longest = max(axes, key=lambda a: found.hints[axis_name(a)])
    return tuple(a for a in axes if a is not longest), longest


def _matrix(
    found: Contraction,
    operand: Operand,
    args: Mapping[str, KernelArg],
    row: Index | None,
    batch: tuple[Index, ...],
) -> Matrix:
    load = operand.plain
    if load is None:
        raise UnsupportedError("an operand is computed before it is multiplied", _OTHERS)
    matrix = strided(args[load.buffer], load.index, row, found.depth[0], batch)
    if matrix is None:
        raise UnsupportedError("an operand is no strided matrix", _OTHERS)
    return matrix


def strided(
    arg: KernelArg, index: IndexLike, row: Index | None, depth: Index, batch: tuple[Index, ...]
) -> Matrix | None:
    """What lies at `index` as a matrix, or None where an axis takes uneven steps."""
    axes = [one for one in (row, depth, *batch) if one is not None]
    found = affine(index, axes)
    if found is None:
        return None
    step, *steps = found.strides if row is not None else (0, *found.strides)
    return Matrix(arg, arg.dtype, found.offset, step, steps[0], tuple(steps[1:]))


def extent(axis: Index | None) -> IndexLike:
    """How many points an axis has; one where there is none."""
    return 1 if axis is None else axis_size(axis)
