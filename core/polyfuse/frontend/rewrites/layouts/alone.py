"""A light convolution that is all a graph does with images: nothing shares the cost of converting them."""

from __future__ import annotations

import math
from typing import Any, Final

from torch.fx import Node

from polyfuse.frontend.rewrites.tools import aten, tensor_value
from polyfuse.runtime.devices.registry import device_of

_LIGHT: Final = 128
"""Multiplications for each number of the image and of the result, below which converting costs more than
channels last gain."""

_FEW_PIXELS: Final = 1024
"""Pixels of all results, below which kernels that read channels last gain more than that."""


def is_light_alone(node: Node) -> bool:
    """Whether a call convolves an input of the graph to its result on the CPU, with so few multiplications
    that a library does it sooner as it was traced.

    Sizes that vary are not judged, nor are transposed convolutions and images with their channels last.
    """
    if node.target is not aten.convolution.default or node.args[6]:
        return False
    source, result = node.args[0], tensor_value(node)
    weight, value = tensor_value(node.args[1]), tensor_value(source)
    if result is None or weight is None or value is None or not device_of(value.device.type).is_host:
        return False
    if getattr(source, "op", "") != "placeholder" or any(user.op != "output" for user in node.users):
        return False
    sizes = [_counts(tensor.shape) for tensor in (value, weight, result)]
    if not all(sizes) or not value.is_contiguous() or value.stride(1) == 1:
        return False
    image, window, made = (math.prod(size) for size in sizes)
    products, pixels = made * window // sizes[1][0], made // sizes[2][1]
    return pixels >= _FEW_PIXELS and products < _LIGHT * (image + made)


def _counts(shape: Any) -> tuple[int, ...]:
    """Sizes that are known, all of them positive; else nothing."""
    sizes = tuple(shape)
    return sizes if all(type(size) is int and size > 0 for size in sizes) else ()
