"""Convolutions of single pixels, computed before an image is enlarged instead of behind it.

Interpolation adds up pixels of each channel with weights that no channel changes, and a convolution of single
pixels adds up channels with weights that no pixel changes: either may come first, and before, there are fewer
pixels. Heads of segmentation networks convolve several images at once, enlarged to one size and concatenated:
each part is convolved with its part of the weight, and the results are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, aten, tensor_value

_ENLARGING: Final = frozenset(
    getattr(aten, f"upsample_{name}").default
    for name in ("linear1d", "bilinear2d", "trilinear3d", "nearest1d", "nearest2d", "nearest3d")
)
"""Operators by which a pixel of the result is a sum of pixels of the same channel."""

_SMALLER: Final = 2
"""How many times fewer pixels make it worth while to add up results apart."""
_FEWEST_CHANNELS = 16
"""Channels of an image from which on multiplying takes longer than enlarging."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Channels of the image of a convolution."""

    node: Node
    start: int
    channels: int
    enlarged: bool
    """Whether it is an enlarged image that is convolved before."""


def convolve_before_enlarging(state: Rewriting) -> int:
    """`convolution(upsample(x))` with windows of one pixel becomes `upsample(convolution(x))`."""
    if state.stage != "inference" or state.settings.numerics == "eager":
        return 0

    def exchanged(node: Node) -> Callable[[], Node] | None:
        if not _is_of_pixels(node):
            return None
        parts = _parts(node)
        if not any(part.enlarged for part in parts):
            return None
        return lambda: _exchanged(state, node, parts)

    return state.replace_each(exchanged)


def _is_of_pixels(node: Node) -> bool:
    """Whether a node is a convolution of floating point whose windows are single pixels of known sizes."""
    if node.target is not aten.convolution.default:
        return False
    image, weight, _, stride, padding, _, transposed, _, groups = node.args
    value, taps = tensor_value(image), tensor_value(weight)
    if value is None or taps is None or transposed or groups != 1 or not value.is_floating_point():
        return False
    if any(type(size) is not int for size in (*value.shape, *taps.shape)):
        return False
    plain = all(n == 1 for n in stride) and all(n == 0 for n in padding)
    return plain and prod(taps.shape[2:]) == 1


def _parts(conv: Node) -> list[_Part]:
    """The parts of the image of a convolution, those that stay together as one."""
    image: Any = conv.args[0]
    whole = image.target is aten.cat.default and image.args[1:] == (1,) and len(image.users) == 1
    nodes: Sequence[Node] = image.args[0] if whole else (image,)
    values = [tensor_value(node) for node in nodes]
    if any(value is None or value.dtype != conv.meta["val"].dtype for value in values):
        return []
    parts, start = [], 0
    for node, value in zip(nodes, values, strict=True):
        assert value is not None
        channels = value.shape[1]
        parts.append(_Part(node, start, channels, _is_smaller_before(node, conv.meta["val"])))
        start += channels
    return parts


def _is_smaller_before(node: Node, result: torch.Tensor) -> bool:
    """Whether a part is enlarged from so few pixels that it is worth while to convolve those, and the results
    have no more channels to enlarge than it has.
    """
    if node.target not in _ENLARGING or len(node.users) != 1:
        return False
    source, value = tensor_value(node.args[0]), tensor_value(node)
    if source is None or value is None or any(type(size) is not int for size in source.shape):
        return False
    channels = source.shape[1]
    few = prod(source.shape[2:]) * _SMALLER <= prod(value.shape[2:])
    return few and channels >= _FEWEST_CHANNELS and result.shape[1] <= channels


def _exchanged(state: Rewriting, node: Node, parts: Sequence[_Part]) -> Node:
    """The sum of the parts' convolutions. The first one adds the bias: weights of an interpolation add up to
    one, so that enlarging does not change it.
    """
    weight, bias, rest = node.args[1], node.args[2], node.args[3:]

    def call(target: Any, *args: Any) -> Node:
        return state.call_before(node, target, args)

    def convolved(image: Node, weights: Any, first: bool) -> Node:
        return call(aten.convolution.default, image, weights, bias if first else None, *rest)

    def weights_of(some: Sequence[_Part]) -> Any:
        if len(some) == len(parts):
            return weight
        slices = [call(aten.slice.Tensor, weight, 1, p.start, p.start + p.channels) for p in some]
        return slices[0] if len(slices) == 1 else call(aten.cat.default, slices, 1)

    results = []
    others = [part for part in parts if not part.enlarged]
    if others:
        images = [part.node for part in others]
        image = images[0] if len(images) == 1 else call(aten.cat.default, images, 1)
        results.append(convolved(image, weights_of(others), True))
    for part in (part for part in parts if part.enlarged):
        small: Any = part.node.args[0]
        result = convolved(small, weights_of([part]), not results)
        results.append(call(part.node.target, result, *part.node.args[1:]))
    total = results[0]
    for result in results[1:]:
        total = call(aten.add.Tensor, total, result)
    return total
