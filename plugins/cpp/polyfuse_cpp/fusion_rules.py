"""Fusions that would cost more than they save."""

from __future__ import annotations

from typing import Final

from polyfuse.ir.nodes import Pointwise, Reduction
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.types import DType
from polyfuse.kit.streams import too_many_streams
from polyfuse.plugin import Claim, FusionPair, FusionRule, No, Yes
from polyfuse.symbolic import axis_name, axis_size, coefficient


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


RULES: Final = (
    FusionRule("few-streams", allows=few_streams),
    FusionRule("beside-channels", allows=beside_channels),
)
