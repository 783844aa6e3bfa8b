"""Blocks of columns in which parameters are packed once for generated matmuls."""

from __future__ import annotations

from polyfuse.ir.expr import loads
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.symbolic import axis_name, axis_size, coefficient, free_axes
from polyfuse_cpp.isa import Isa, has_matrix_registers, has_pair_products, steps_of
from polyfuse_cpp.matmul.tiled.padded import steps_in
from polyfuse_cpp.matmul.window import part_lanes

_MOST_DIMENSIONS = 2
"""Dimensions of windows whose pixels are copied for matrix registers."""

_PAIRED_WIDTHS = (32, 16)
"""Columns of a block whose pairs of steps are multiplied without matrix registers. A head has
mostly so many times as many; of one that has not, blocks would be read number by number."""

_PART = 8
"""Lanes of a part of a vector that holds all columns of a group."""


def packed_width(node: Reduction, isa: Isa) -> int:
    """Columns of a block, if operand B were packed once: whole vectors of the numbers that are
    multiplied, which divide all columns if any do; all columns of a convolution if none does. 0: it is better
    read as it is.
    """
    kind, own = node.values[1].dtype, {name for e in loads(node.values[1]) for name in free_axes(e.index)}
    # of a convolution's result, the channels are not the last axis
    count = next((axis_size(a) for a in reversed(node.axes) if axis_name(a) in own), 0)
    if fills_matrix_registers(node, isa):
        # nothing may be read behind the last step
        if not isinstance(count, int) or not _is_whole(node):
            return 0
        return next((width for width in (2 * isa.lanes, isa.lanes) if count % width == 0), 0)
    if multiplies_pairs(node, isa):
        steps = axis_size(node.raxes[0])
        if not isinstance(count, int) or not isinstance(steps, int) or steps % 2:
            return 0
        return next((width for width in _PAIRED_WIDTHS if count % width == 0), 0)
    if isa.lanes == 1 or accumulates(kind) is not kind or not count:
        return 0
    widths = [vectors * isa.lanes for vectors in ((2, 3, 4, 1) if len(node.raxes) > 1 else (4, 3, 2))]
    found = next((width for width in widths if count % width == 0), 0)
    if not found and kind is DType.f32 and isinstance(count, int):
        if _has_grouped_window(node):
            found = count if part_lanes(count, isa.lanes) else 0
        elif _has_window(node):
            # all are one block, of which the kernel packs the last vectors with zeros at each call
            found = count
    return found or 2 * isa.lanes


def fills_matrix_registers(node: Reduction, isa: Isa) -> bool:
    """Whether a matmul is one of bf16, for which there are matrix registers: without windows, or a
    convolution of all channels under windows of one or two dimensions.
    """
    flat = all(axis_size(axis) == 1 for axis in node.raxes[1:])
    window = _has_window(node) and len(node.raxes) <= _MOST_DIMENSIONS + 1
    return (flat or window) and {v.dtype for v in node.values} == {DType.bf16} and has_matrix_registers(isa)


def multiplies_pairs(node: Reduction, isa: Isa) -> bool:
    """Whether a matmul is a linear layer of bf16 whose rows lie along the depth, and whose pairs of steps are
    multiplied without matrix registers.
    """
    if (len(node.axes), len(node.raxes)) != (2, 1) or {v.dtype for v in node.values} != {DType.bf16}:
        return False
    inside, columns = axis_name(node.raxes[0]), axis_name(node.axes[1])
    rows, weight = node.values
    if any(value.op != "load" or value.args for value in node.values) or coefficient(rows.index, inside) != 1:
        return False
    lies = 1 in (coefficient(weight.index, inside), coefficient(weight.index, columns))
    return lies and has_pair_products(isa) and not has_matrix_registers(isa)


def lies_along_columns(node: Reduction) -> bool:
    """Whether the columns of a linear layer's weight lie side by side, and so do the steps of its rows:
    packing the weight moves whole vectors.
    """
    rows, weight = node.values
    if any(value.op != "load" or value.args for value in node.values):
        return False
    beside = coefficient(weight.index, axis_name(node.axes[1])) == 1
    return beside and coefficient(rows.index, axis_name(node.raxes[0])) == 1


def _is_whole(node: Reduction) -> bool:
    """Whether the steps of the depth that lie side by side are so many times what matrix registers hold."""
    channels, *taps = node.raxes
    steps = axis_size(channels)
    if not isinstance(steps, int):
        return False
    if not any(axis_size(a) != 1 for a in taps):
        return steps % steps_of(steps) == 0
    image, last = node.values[0], axis_size(taps[-1])
    if image.op != "load" or steps % 2 or not isinstance(last, int):
        return False
    beside = coefficient(image.index, axis_name(taps[-1])) == steps
    chunk = steps * last if beside else steps
    return chunk % steps_in(chunk) == 0


def is_part(node: Reduction, isa: Isa) -> bool:
    """Whether the columns of a block are one part of a vector."""
    return packed_width(node, isa) == _PART < isa.lanes


def _has_grouped_window(node: Reduction) -> bool:
    """Whether a matmul is a convolution of groups of channels under windows of several pixels."""
    taps = node.raxes[1:]
    return len(node.axes) > len(taps) + 2 and any(axis_size(a) != 1 for a in taps)


def _has_window(node: Reduction) -> bool:
    """Whether a matmul is a convolution of all channels under windows of several pixels."""
    taps = node.raxes[1:]
    return len(node.axes) == len(taps) + 2 and any(axis_size(a) != 1 for a in taps)
