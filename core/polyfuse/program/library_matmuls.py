"""Matmuls by a library as rows of a series: what a launcher needs to know to call that library itself.

A call through torch costs several times what the library's own function does: arguments are parsed and
dispatched, tensors are made for views, and the library is asked for an algorithm anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from polyfuse.ir.nodes import Buffer, View
from polyfuse.program.steps import ExternStep, MakeView, Ref, Step

ALIGNMENT = 16
"""Bytes of which all operands' addresses are multiples."""

_RANKS = {"mm": 2, "bmm": 3, "addmm": 2, "_addmm_activation": 2}


@dataclass(frozen=True)
class Matrix:
    """An operand: matrices in the memory of a variable.

    Attributes:
        name: the variable.
        offset: bytes from its beginning.
        columns_first: whether neighbours in memory are neighbours of one column.
        step: elements from one row to the next, or from one column to the next if `columns_first`.
        batch: elements from one matrix to the next.
    """

    name: str
    offset: int
    columns_first: bool
    step: int
    batch: int


@dataclass(frozen=True)
class LibraryMatmul:
    """``out = activation(left @ right + bias)``.

    Attributes:
        dtype: of all, torch's name.
        sizes: how many matrices, rows and columns of each result, and the depth.
        activation: ``""``, ``"relu"`` or ``"gelu"`` (tanh's).
        bias: a vector, for all rows; None: there is none.
    """

    dtype: str
    sizes: tuple[int, int, int, int]
    activation: str
    out: Matrix
    left: Matrix
    right: Matrix
    bias: Matrix | None

    def row(self, slot: Callable[[str], int]) -> tuple[Any, ...]:
        """The row of a series (`steps.SeriesRow`), given the slots of variables."""
        matrices = (self.out, self.left, self.right)
        operands = tuple((slot(m.name), m.offset, m.columns_first, m.step, m.batch) for m in matrices)
        bias = None if self.bias is None else (slot(self.bias.name), self.bias.offset)
        return ("matmul", self.dtype, self.sizes, self.activation, *operands, bias)


class LibraryMatmuls:
    """The matmuls of a program that a series may have.

    Args:
        steps: of the program.
        buffers: of its graph.
        dtypes: those that launchers call a library for.
    """

    def __init__(self, steps: Sequence[Step], buffers: Mapping[str, Buffer], dtypes: Set[str]) -> None:
        self._buffers = buffers
        self._dtypes = dtypes
        self._views = {step.name: step.view for step in steps if isinstance(step, MakeView)}

    def of(self, step: Step, inside: Set[str] = frozenset()) -> LibraryMatmul | None:
        """What a step computes, or None if a library is not called for that.

        Args:
            inside: views that are no variables of their own, but positions in what they are views of.
        """
        if not self._dtypes or not isinstance(step, ExternStep) or step.out != "out":
            return None
        name = step.op.removeprefix("aten.").partition(".")[0]
        kwargs = dict(step.kwargs)
        activation = ""
        if name == "_addmm_activation":
            activation = "gelu" if kwargs.pop("use_gelu", False) else "relu"
        rank, count = _RANKS.get(name, 0), 3 if "addmm" in name else 2
        if not rank or not step.op.startswith("aten.") or kwargs or len(step.args) != count:
            return None
        given = (self._operand(value, inside) for value in (Ref(step.outputs[0]), *step.args))
        operands = [operand for operand in given if operand is not None]
        dtypes = {operand.dtype for operand in operands}
        if len(operands) != 1 + count or len(dtypes) > 1 or not dtypes <= self._dtypes:
            return None
        return _matmul(rank, activation, operands)

    def _operand(self, value: Any, inside: Set[str]) -> _Operand | None:
        name, view = "", None
        if isinstance(value, View):
            name, view = value.buffer, value
        elif isinstance(value, Ref) and value.name in self._views:
            view = self._views[value.name]
            name = view.buffer if value.name in inside else value.name
        elif isinstance(value, Ref):
            name = value.name
        buffer = self._buffers.get(name if view is None else view.buffer)
        if buffer is None or buffer.dtype is None:
            return None
        layout = buffer if view is None else view
        offset = view.offset if view is not None and name == view.buffer else 0
        numbers = (*layout.size, *layout.stride, offset)
        if view is not None and view.dtype not in (None, buffer.dtype):
            return None
        known = [n for n in numbers if isinstance(n, int)]
        if len(known) < len(numbers) or 0 in layout.size:
            return None
        rank = len(layout.size)
        size, stride = tuple(known[:rank]), tuple(known[rank:-1])
        return _Operand(name, buffer.torch_dtype, size, stride, known[-1] * buffer.itemsize)


@dataclass(frozen=True)
class _Operand:
    name: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def matrix(self) -> Matrix | None:
        """It as matrices; None where neither rows nor columns are dense."""
        if self.offset % ALIGNMENT:
            return None
        rows, columns = self.size[-2:]
        down, right = self.stride[-2:]
        batch = self.stride[0] if len(self.size) == 3 else 0
        if (right == 1 or columns == 1) and (down >= columns or rows == 1):
            return Matrix(self.name, self.offset, False, down if rows > 1 else columns, batch)
        if (down == 1 or rows == 1) and (right >= rows or columns == 1):
            return Matrix(self.name, self.offset, True, right if columns > 1 else rows, batch)
        return None


def _matmul(rank: int, activation: str, operands: Sequence[_Operand]) -> LibraryMatmul | None:
    out, *added, left, right = operands
    if any(len(o.size) != rank for o in (out, left, right)):
        return None
    bias = None
    if added:
        (vector,) = added
        if vector.size != out.size[-1:] or vector.stride != (1,) or vector.offset % ALIGNMENT:
            return None
        bias = Matrix(vector.name, vector.offset, False, 1, 0)
    matrices = [o.matrix() for o in (out, left, right)]
    to, a, b = matrices
    if to is None or a is None or b is None or to.columns_first:
        return None
    batch = out.size[0] if rank == 3 else 1
    if rank == 3 and not left.size[0] == right.size[0] == batch:
        return None
    sizes = (batch, out.size[-2], out.size[-1], left.size[-1])
    return LibraryMatmul(out.dtype, sizes, activation, to, a, b, bias)
