"""Matmuls in kernels: which operand runs along the lanes, and how both lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Cast, Load, Reduce, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit import is_multiple, stride
from polyfuse.kit.contraction import Contraction, Operand, match
from polyfuse.symbolic import (
    Index,
    IndexLike,
    atoms,
    axis,
    axis_name,
    coefficient,
    free_axes,
    product,
    substitute,
)
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.isa import steps_of

FEW_PIXELS: Final = 32
"""Pixels of a convolution up to which its weight is read as it lies, along the depth."""

_NARROWEST = 4
"""Columns of the narrowest block."""

_FAR = 256 << 10
"""Bytes of a packed operand from which a tile asks for what is read later, since it comes from far."""


@dataclass(frozen=True)
class MatrixOperand:
    """One operand and the parallel axes of its own.

    Attributes:
        operand: its statements.
        axes: names of its axes, in the order in which they are counted, the last one fastest.
        index: where it is loaded from, if the load is all there is to it.
        buffer: the buffer of that load.
        memory: the type of its elements there; otherwise that of the value.
        step: elements from one step of the depth to the next, where that is one number for all.
        apart: the same for the last axis; within a block, where there are blocks.
        packed_width: columns of a block, where the operand is packed in blocks already; else 0.
        paired: whether pairs of steps lie side by side in these blocks, for each column.
    """

    operand: Operand
    axes: tuple[str, ...]
    index: IndexLike | None
    buffer: str
    memory: DType
    step: IndexLike | None
    apart: IndexLike | None
    packed_width: int = 0
    paired: bool = False


@dataclass(frozen=True)
class Matmul:
    """A contraction, seen from the registers: `right` runs along the lanes, `left` is spread over them.

    Attributes:
        facts: what is known of the kernel.
        batch: axes along which both operands vary, or neither.
        left, right: the operands.
        depth: axes that are summed over, the last one fastest.
        dtype: the type of the sums.
        accumulator: the name of a sum.
        epilogue: what is done with each sum.
    """

    kernel: Kernel
    facts: Facts
    batch: tuple[str, ...]
    a: MatrixOperand
    b: MatrixOperand
    depth: tuple[str, ...]
    dtype: DType
    accumulator: str
    epilogue: tuple[Statement, ...]

    @property
    def rows_touch(self) -> bool:
        """Whether the rows of operand A are contiguous at each step."""
        side = self.a
        moving = [a for a in side.axes if self.facts.sizes[a] != 1]
        return side.step is not None and side.apart == 1 and moving == list(side.axes[-1:])

    @property
    def moving_depth(self) -> tuple[str, ...]:
        """The axes of the depth that have more than one point."""
        return tuple(name for name in self.depth if self.facts.sizes[name] != 1)

    @property
    def is_layer(self) -> bool:
        """Whether rows and depth are one axis each, as in a linear layer."""
        rows = [name for name in self.a.axes if self.facts.sizes[name] != 1]
        return len(rows) == len(self.moving_depth) == 1

    def extent(self, axes: Iterable[str]) -> int:
        """How many points some axes span together, for the example sizes."""
        points = 1
        for name in axes:
            points *= max(1, self.facts.hints[name])
        return points


def has_matmul(kernel: Kernel) -> bool:
    """Whether a kernel holds a matmul."""
    stmts = (s for part in kernel.sections for s in part.body)
    return any(isinstance(s, Reduce) and s.kind in CONTRACTIONS for s in stmts)


def matmul_of(kernel: Kernel) -> Matmul:
    """The matmul of a kernel.

    Raises:
        UnsupportedError: the kernel holds one, but is made otherwise than the generator can do.
    """
    found = match(kernel)
    if found is None:
        raise UnsupportedError(
            "the loop holds more than one matmul", "let the library compute it, or split the kernel"
        )
    facts = Facts.of(kernel)
    _check(found, facts)
    rows, columns = _names(found.rows), _names(found.columns)
    accesses = _accesses(found.epilogue)
    depth = _names(found.depth)
    swapped = _swapped(found, rows, columns, depth, accesses, facts)
    if swapped:
        rows, columns = columns, rows
    if not columns:
        raise UnsupportedError("the matmul has neither rows nor columns", "let the library compute it")
    last = max(reversed(columns), key=lambda name: (_score((name,), accesses), facts.hints[name] >= 8))
    columns = (*(name for name in columns if name != last), last)
    left, right = (found.right, found.left) if swapped else (found.left, found.right)
    return Matmul(
        kernel,
        facts,
        _names(found.batch),
        _side(left, rows, depth, facts),
        _prepacked(_side(right, columns, depth, facts), depth, facts),
        depth,
        found.dtype,
        found.accumulator,
        found.epilogue,
    )


def _swapped(
    found: Contraction,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    depth: tuple[str, ...],
    accesses: Sequence[tuple[IndexLike, float]],
    facts: Facts,
) -> bool:
    """Whether the left operand runs along the lanes."""
    if not rows or not columns:
        return not columns
    # a weight that was packed for the lanes stays there, though results are then stored apart: otherwise each
    # tile would gather its pixels and unpack the weight
    if _prepacked(_side(found.left, rows, depth, facts), depth, facts).packed_width:
        return True
    if _prepacked(_side(found.right, columns, depth, facts), depth, facts).packed_width:
        return False
    # so does one that is laid out for the lanes at each call
    if _pixels_of_taps(found.left, rows, columns, depth, facts) > FEW_PIXELS:
        return True
    if _pixels_of_taps(found.right, columns, rows, depth, facts) > FEW_PIXELS:
        return False
    # a weight of bytes is converted along the depth, for all rows at once
    bytes_left, bytes_right = (operand_bytes(side, depth, facts) >= 0 for side in (found.left, found.right))
    if found.dtype.is_float and bytes_left != bytes_right:
        return bytes_left
    return _score(rows, accesses) > _score(columns, accesses)


def _pixels_of_taps(
    operand: Operand, own: Sequence[str], others: Sequence[str], depth: Sequence[str], facts: Facts
) -> int:
    """Pixels of a convolution of all channels whose weight an operand is, stored with the taps of a channel
    side by side (`lies_by_taps`); 0: it is none. `own`, `others`: axes of the operand and of the other one.
    """
    plain = operand.plain
    if plain is None or plain.buffer not in facts.memory or facts.memory[plain.buffer] is not DType.f32:
        return 0
    moving = [name for name in own if facts.sizes[name] != 1]
    if len(moving) != 1 or not lies_by_taps(plain.index, moving[0], depth, facts.sizes):
        return 0
    pixels = 1
    for name in others:
        pixels *= max(1, facts.hints[name])
    return pixels


def lies_by_taps(index: IndexLike, column: str, depth: Sequence[str], sizes: Mapping[str, IndexLike]) -> bool:
    """Whether an operand is stored as the weight of a convolution: the taps of a channel, of which there are
    several, side by side, then channels, the first axis of the depth, then columns.
    """
    if len(depth) < 2 or all(sizes[name] == 1 for name in depth[1:]):
        return False
    following: IndexLike = 1
    for name in (*depth[:0:-1], depth[0], column):
        if sizes[name] != 1 and stride(index, name) != following:
            return False
        following = following * sizes[name]
    return True


def operand_bytes(operand: Operand, depth: Sequence[str], facts: Facts) -> int:
    """`byte_axis` of an operand, among the axes of the depth that have more than one point."""
    read = [(s.index, facts.memory[s.buffer].itemsize) for s in operand.body if isinstance(s, Load)]
    return byte_axis([name for name in depth if facts.sizes[name] != 1], facts.sizes, read)


def byte_axis(
    depth: Sequence[str], sizes: Mapping[str, IndexLike], read: Iterable[tuple[IndexLike, int]]
) -> int:
    """Which of the axes of the depth bytes lie along, so that lanes can: inside it are at most four steps,
    which are made of one byte, and nothing that is read differs there. -1: none.

    Args:
        read: where numbers are read, and how many bytes each has.
    """
    read = list(read)
    inner = 1
    for position in range(len(depth) - 1, -1, -1):
        along = [(index, size) for index, size in read if depth[position] in free_axes(index)]
        if along:
            straight = all(stride(index, depth[position]) == 1 for index, _ in along)
            return position if straight and any(size == 1 for _, size in along) else -1
        count = sizes[depth[position]]
        inner = inner * count if isinstance(count, int) else 8
        if inner > 4:
            return -1
    return -1


def _check(found: Contraction, facts: Facts) -> None:
    operands = (*found.left.body, *found.right.body)
    read = {s.buffer for s in operands if isinstance(s, Load)}
    if read & facts.written:
        raise UnsupportedError("a result is written over an operand", "let the library compute the matmul")
    if any(isinstance(s, Store) and s.mode != "set" for s in found.epilogue):
        raise UnsupportedError("results of the matmul are added to memory", "split the kernel")


def _names(axes: Sequence[Index]) -> tuple[str, ...]:
    return tuple(axis_name(a) for a in axes)


def _accesses(body: Sequence[Statement]) -> list[tuple[IndexLike, float]]:
    """Where the results are read and written, and how much that matters."""
    weights = {"load": 1.0, "store": 2.0}
    return [(s.index, weights[s.op]) for s in body if isinstance(s, (Load, Store))]


def _score(names: Sequence[str], accesses: Sequence[tuple[IndexLike, float]]) -> float:
    """How much of the memory traffic of the results is contiguous along one of some axes."""
    return sum(w for index, w in accesses if any(coefficient(index, name) == 1 for name in names))


def _side(operand: Operand, axes: tuple[str, ...], depth: tuple[str, ...], facts: Facts) -> MatrixOperand:
    plain = operand.plain
    if plain is None:
        return MatrixOperand(operand, axes, None, "", operand.dtype, None, None)
    index = plain.index
    step = _step(index, tuple(name for name in depth if facts.sizes[name] != 1), facts)
    apart = stride(index, axes[-1]) if axes else None
    return MatrixOperand(operand, axes, index, plain.buffer, facts.memory[plain.buffer], step, apart)


def as_stored(matmul: Matmul) -> Matmul | None:
    """A matmul of f32 sums whose operand B is bytes that lie along the depth and nothing is done to but a
    conversion, which is exact: the same, with them as the operand. None: it is no such.
    """
    side, facts = matmul.b, matmul.facts
    match side.operand.body:
        case (Load(indirect=(), mask=None) as load, *others) if others and matmul.dtype is DType.f32:
            exact = all(isinstance(s, Cast) and s.dtype.is_float and not s.bitwise for s in others)
            if not exact or facts.memory[load.buffer] not in (DType.i8, DType.u8):
                return None
        case _:
            return None
    found = _side(replace(side.operand, body=(load,)), side.axes, matmul.depth, facts)
    return replace(matmul, b=found) if found.step == 1 else None


def _step(index: IndexLike, moving: Sequence[str], facts: Facts) -> IndexLike | None:
    """Elements from one step of the depth to the next, if the axes of the depth lie one inside the other."""
    step = stride(index, moving[-1]) if moving else None
    if step is None:
        return None
    following = step
    for name, inner in zip(moving[-2::-1], moving[:0:-1], strict=True):
        following = following * facts.sizes[inner]
        if stride(index, name) != following:
            return None
    return step


def _prepacked(side: MatrixOperand, depth: Sequence[str], facts: Facts) -> MatrixOperand:
    """The operand along the lanes, with its blocks, if it lies in some."""
    if side.step is None:
        return _in_pairs(side, depth, facts)
    if side.index is None or side.apart is not None:
        return side
    name = side.axes[-1]
    size = facts.sizes[name]
    for atom in atoms(side.index):
        width = atom.args[1] if atom.kind == "mod" else 0
        if not isinstance(width, int) or not isinstance(size, int) or not width or size % width:
            continue
        column = axis("block", size // width) * width + axis("column", width)
        if coefficient(substitute(side.index, {name: column}), "column") == 1:
            return replace(side, apart=1, packed_width=width)
    return side


def _in_pairs(side: MatrixOperand, depth: Sequence[str], facts: Facts) -> MatrixOperand:
    """The same where pairs of steps lie side by side in the blocks, for each column."""
    moving = [name for name in depth if facts.sizes[name] != 1]
    size, steps = facts.sizes[side.axes[-1]], facts.sizes[moving[-1]] if moving else None
    if side.index is None or not isinstance(size, int) or not isinstance(steps, int) or steps % 2:
        return side
    # all columns may be one block
    for width in (size, *(atom.args[1] for atom in atoms(side.index) if atom.kind == "mod")):
        if not isinstance(width, int) or width < _NARROWEST or size % width:
            continue
        column = axis("block", size // width) * width + axis("column", width)
        step = axis("pair", steps // 2) * 2 + axis("half", 2)
        where = substitute(side.index, {side.axes[-1]: column, moving[-1]: step})
        wanted: dict[str, IndexLike] = {"column": 2, "half": 1, "pair": 2 * width}
        # taps of a window follow each other
        following: IndexLike = steps * width
        for name in moving[-2::-1]:
            wanted[name], following = following, following * facts.sizes[name]
        if all(coefficient(where, name) == apart for name, apart in wanted.items()):
            return replace(side, apart=2, packed_width=width, paired=True)
    return side


def is_far_layer(matmul: Matmul) -> bool:
    """Whether a matmul is a linear layer whose weight stays in no near cache."""
    right = matmul.b
    size = matmul.extent(matmul.depth) * matmul.extent(right.axes) * right.memory.itemsize
    return matmul.is_layer and size >= _FAR


def tile_steps(matmul: Matmul) -> int:
    """Steps of the depth that one matrix register holds (`steps_of`)."""
    depth = product(matmul.facts.sizes[name] for name in matmul.depth)
    return steps_of(depth if isinstance(depth, int) else 0)


def whole_tiles(matmul: Matmul) -> bool:
    """Whether the depth is known to be so many times what matrix registers hold."""
    return is_multiple(product(matmul.facts.sizes[name] for name in matmul.depth), tile_steps(matmul))
