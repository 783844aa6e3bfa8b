"""Fusions that would cost more than they save."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from polyfuse.ir.expr import walk
from polyfuse.ir.nodes import Pointwise, Reduction
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.types import DType
from polyfuse.kit.streams import too_many_streams
from polyfuse.plugin import Claim, FusionPair, FusionRule, No, Yes
from polyfuse.symbolic import IndexLike, atoms, axis_name, axis_size, coefficient, free_axes


def few_streams(pair: FusionPair) -> Claim:
    """Whether two groups of nodes share enough data to become a kernel of many arrays."""
    reason = too_many_streams(pair.streams, pair.shared_bytes, pair.touched_bytes)
    return No(reason) if reason else Yes()


def beside_channels(pair: FusionPair) -> Claim:
    """Whether what follows a convolution of bf16 under windows stores its channels side by side, as they are
    in registers. Otherwise each number of a tile is in a line of memory of its own (3 to 64 channels, 7x7 on
    224x224 by 2: 5.3 ms, 1.7 with a loop behind it).
    """
    for node in pair.first:
        if isinstance(node, Reduction) and _is_narrow_window(node):
            channel, count = -len(node.raxes), axis_size(node.axes[1])
            if any(_scatters(other, channel, count) for other in pair.second):
                return No("it stores pixels side by side, and channels apart")
    return Yes()


def _is_narrow_window(node: Reduction) -> bool:
    taps = node.raxes[1:]
    narrow = node.kind in CONTRACTIONS and all(value.dtype is DType.bf16 for value in node.values)
    return narrow and any(axis_size(a) != 1 for a in taps) and len(node.axes) == len(taps) + 2


def _scatters(node: object, channel: int, count: object) -> bool:
    """Whether a loop over images, whose axis at `channel` is that of `count` channels, stores other numbers
    than these side by side.
    """
    if not isinstance(node, Pointwise) or len(node.axes) < -channel:
        return False
    beside = [a for a in node.axes if axis_size(a) != 1 and coefficient(node.index, axis_name(a)) == 1]
    return axis_size(node.axes[channel]) == count != 1 and node.axes[channel] not in beside != []


def whole_blocks(pair: FusionPair) -> Claim:
    """Whether what follows a convolution leaves its channels together, or divides them in blocks that fill
    vectors. Of fewer channels each block is a vector that is mostly empty (32 to 27 channels and a shuffle of
    3x3 pixels: 9.3 ms, 1.5 with a loop behind it). What follows a linear layer whose weight was
    packed divides its columns in heads of whole blocks: else the weight is read number by number, which takes
    twice the time.
    """
    for node in pair.first:
        channel = _channel_axis(node)
        if channel is None or not isinstance(node, Reduction):
            continue
        whole = _packed_width(node)
        for earlier in pair.first:
            step = coefficient(getattr(earlier, "index", 0), channel)
            if (
                isinstance(step, int)
                and step
                and any(
                    _divides(later, earlier.writes(), step, axis_size(node.axes[1]), whole)
                    for later in pair.second
                )
            ):
                return No("it divides columns in blocks that fill no vector, or none of a packed weight")
    return Yes()


def _channel_axis(node: object) -> str | None:
    """The name of the axis of a convolution's channels, or of the columns of a layer with a packed weight."""
    if not isinstance(node, Reduction) or node.kind not in CONTRACTIONS:
        return None
    is_convolution = len(node.axes) == len(node.raxes) + 1 > _MATRIX
    return axis_name(node.axes[1]) if is_convolution or _packed_width(node) else None


def _packed_width(node: Reduction) -> int:
    """Columns of a block of the packed weight of a linear layer; 0: it is none, is read as it is, or takes
    less time to read number by number than a loop over so many rows of results does.
    """
    if (len(node.axes), len(node.raxes)) != (_MATRIX, 1):
        return 0
    rows, depth = axis_size(node.axes[0]), axis_size(node.raxes[0])
    wide = all(value.dtype is DType.f32 for value in node.values)
    if wide and isinstance(rows, int) and isinstance(depth, int) and rows >= _ROWS_FOR_A_STEP * depth:
        return 0
    column, weight = axis_name(node.axes[1]), node.values[1]
    for atom in atoms(weight.index) if weight.op == "load" else ():
        # of the column's position in its block
        if atom.kind == "mod" and column in free_axes(atom.args[0]) and isinstance(atom.args[1], int):
            return atom.args[1]
    return 0


def _divides(node: object, buffers: Collection[str], step: int, count: IndexLike, whole: int) -> bool:
    """Whether a loop reads channels, `step` numbers apart, along several axes, the innermost one short, or
    where blocks have `whole` columns no multiple of that.
    """
    if not isinstance(node, Pointwise) or not isinstance(count, int):
        return False
    for read in walk(node.value):
        if read.op != "load" or read.buffer not in buffers:
            continue
        found = (
            (coefficient(read.index, axis_name(a)), axis_size(a)) for a in node.axes if axis_size(a) != 1
        )
        steps = {k: n for k, n in found if isinstance(k, int) and k % step == 0 and step <= k < step * count}
        inner = steps.get(step)
        if (
            len(steps) > 1
            and isinstance(inner, int)
            and (inner % whole if whole else inner < _FEWEST_TOGETHER)
        ):
            return True
    return False


_MATRIX: Final = 2
"""Axes of the result of a matmul."""

_ROWS_FOR_A_STEP: Final = 4
"""Rows for each step of the depth from which laying out a weight of f32 at each call does not count:
3136x96x96 605 us, 694 with a loop behind it; 784x192x192 582 and 604; 257x320x320 810 and 580."""

_FEWEST_TOGETHER: Final = 8
"""Channels that fill a vector, or half of one."""

RULES: Final = (
    FusionRule("few-streams", allows=few_streams),
    FusionRule("beside-channels", allows=beside_channels),
    FusionRule("whole-blocks", allows=whole_blocks),
)
