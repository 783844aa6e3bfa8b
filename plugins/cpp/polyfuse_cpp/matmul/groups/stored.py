"""Weights of convolutions that a kernel reads as they are stored: at each call it lays out a block of
columns, which stays in the second cache, multiplies all tiles of rows with it, and lays out the next one.

No copy goes to memory, and nothing has to be compared with what it was. Rows of registers are transposed, so
that a column's numbers are read side by side.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final

from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis_name, axis_size, coefficient
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.matmul.groups.lines import ENOUGH, line_rows
from polyfuse_cpp.matmul.problem import Matmul, lies_by_taps
from polyfuse_cpp.matmul.window import PAGE, window_of

REGISTERS: Final = 32
"""Registers of a machine on which tiles are parts of lines."""

_MOST_TAPS = 9
"""Taps of a window: the code that lays out so many registers of each column is written without a loop."""

_VECTORS = (2, 3, 4, 1)
"""Vectors of columns that a block may have, the best first."""


def block_vectors(columns: IndexLike, channels: IndexLike, taps: IndexLike, lanes: int) -> int:
    """Vectors of columns of a block that is laid out for a call; 0: the weight fills no whole ones."""
    sizes = (columns, channels, taps)
    if lanes == 1 or not all(isinstance(size, int) for size in sizes):
        return 0
    assert isinstance(columns, int) and isinstance(channels, int) and isinstance(taps, int)
    if channels % lanes or not 1 < taps <= _MOST_TAPS:
        return 0
    return next((n for n in _VECTORS if columns % (n * lanes) == 0), 0)


def taps_first(matmul: Matmul) -> Matmul | None:
    """The convolution with its taps outside of its channels, if its weight is stored the other way round: the
    taps of a channel side by side, and a column's channels. None: it is not.
    """
    right, sizes = matmul.b, matmul.facts.sizes
    if right.index is None or right.packed_width or right.memory is not DType.f32 or len(matmul.depth) < 2:
        return None
    channel, *taps = matmul.depth
    if not lies_by_taps(right.index, right.axes[-1], matmul.depth, sizes):
        return None
    outer = (*matmul.batch, *right.axes[:-1])
    turned = replace(matmul, depth=(*taps, channel))
    window = window_of(turned)
    if window is None or window.run != channel or any(sizes[name] != 1 for name in outer):
        return None
    return turned


def vectors_of(matmul: Matmul, lanes: int) -> int:
    """`block_vectors` of what `taps_first` gives."""
    *taps, channel = (matmul.facts.sizes[name] for name in matmul.depth)
    whole = prod(taps) if all(isinstance(size, int) for size in taps) else 0
    return block_vectors(matmul.facts.sizes[matmul.b.axes[-1]], channel, whole, lanes)


def reads_stored(node: Reduction, isa: Isa) -> bool:
    """The same of a convolution of all channels that is no kernel yet: whether its tiles will be parts of
    lines, and its weight laid out a block at a time.
    """
    image, weight = node.values
    channel, *taps = node.raxes
    plain = weight.op == image.op == "load" and not weight.args
    if not plain or isa.name != "avx512" or len(taps) > 2:
        return False
    if any(value.dtype is not DType.f32 for value in node.values) or len(node.axes) != len(taps) + 2:
        return False
    following: IndexLike = 1
    for a in (*taps[::-1], channel, node.axes[1]):
        if axis_size(a) != 1 and coefficient(weight.index, axis_name(a)) != following:
            return False
        following = following * axis_size(a)
    vectors = block_vectors(
        axis_size(node.axes[1]), axis_size(channel), prod(axis_size(a) for a in taps), isa.lanes
    )
    line, pitch = axis_size(node.axes[-1]), coefficient(image.index, axis_name(node.axes[-1]))
    if not vectors or not isinstance(line, int) or not isinstance(pitch, int) or pitch * 4 % PAGE == 0:
        return False
    if coefficient(image.index, axis_name(channel)) != 1 or axis_size(node.axes[-1]) == 1:
        return False
    return line_rows(line, vectors, REGISTERS, 1) * vectors >= ENOUGH
