"""Transposed convolutions with channels last as convolutions of their phases."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.base.settings import Settings
from polyfuse.frontend.decompositions.without_libraries import (
    Numbers,
    are_image_phases,
    fewest_channels,
    has_phases,
    in_phases,
)
from polyfuse.frontend.graph import ChannelsLast
from polyfuse.frontend.rewrites.channels_last import as_images
from polyfuse.frontend.rewrites.tools import Rewriting, tensor_value
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import fake

aten = torch.ops.aten

_FEWEST_CHANNELS: Final = 16
"""Channels of a convolution, from which on kernels fill vectors."""

_FEWEST_PIXELS: Final = 256
"""Pixels from which on a library gains more by channels last than laying out the weight for them costs."""

_LINE, _IMAGE = 3, 4
"""Dimensions of what is convolved along one axis, and along two."""


def transposed_lines_as_images(state: Rewriting, wants: Callable[..., ChannelsLast]) -> None:
    """Have those along one axis that `split_transposed` would take convolve images of one line.

    Args:
        wants: says of an image and a weight which of them get their channels last.
    """
    found = [node for node in state.nodes() if _gains(node, state.settings, _LINE)]
    lines = [node for node in found if wants(*map(tensor_value, node.args[:2]))]
    if lines:
        as_images(state.module, lines, fake.detect_fake_mode([lines[0].meta.get("val")]))


def split_transposed(state: Rewriting) -> int:
    """Rewrite those of f32 on the CPU whose weights are laid out once, with `freezing`; where all is to be
    generated, others, too.

    Returns:
        how many there were.
    """
    count = 0
    for node in [node for node in state.nodes() if _gains(node, state.settings, _IMAGE)]:
        image, weight, bias = node.args[:3]
        x, w, result = (tensor_value(value) for value in (image, weight, node))
        assert x is not None and w is not None and result is not None
        last = _lies_last(result)
        if not _lies_last(x) or not (last or result.is_contiguous()):
            if state.settings.gemm != "generated":
                continue
            last = False

        def call(target: Any, *args: Any, node: Node = node, **kwargs: Any) -> Node:
            return state.call_before(node, target, args, kwargs)

        batch = x.shape[0] if isinstance(x.shape[0], int) else -1
        sizes = batch, *x.shape[2:]
        made = in_phases(call, (image, weight, bias), sizes, w.shape, _numbers(node, 2), last)
        if not last and not result.is_contiguous():
            made = call(aten.clone.default, made, memory_format=torch.channels_last)
        state.replace(node, made)
        count += 1
    return count


def stays_as_traced(node: Node, settings: Settings) -> bool:
    """Whether a library convolves an image of few pixels, whose weight it would lay out for channels last at
    each call, which takes as long as convolving does.
    """
    if not _is_transposed(node) or _gains(node, settings, _IMAGE):
        return False
    x = tensor_value(node.args[0])
    if x is None or x.dtype is not torch.float32 or not device_of(x.device.type).is_host:
        return False
    sizes = [x.shape[0], *x.shape[2:]]
    return all(isinstance(n, int) for n in sizes) and prod(sizes) < _FEWEST_PIXELS


def _is_transposed(node: Node) -> bool:
    return node.target is aten.convolution.default and bool(node.args[6])


def _gains(node: Node, settings: Settings, dims: int) -> bool:
    if not _is_transposed(node):
        return False
    values = [tensor_value(arg) for arg in (*node.args[:2], node)]
    if settings.gemm == "generated" and dims == _IMAGE and None not in values:
        return are_image_phases(values[0], values[1], node.args[3:])
    if not settings.freezing or settings.numerics != "fast":
        return False
    if any(v is None or v.dtype is not torch.float32 or v.dim() != dims for v in values):
        return False
    x, w, result = (v for v in values if v is not None)
    known = all(isinstance(n, int) for value in (x, w, result) for n in value.shape[1:])
    if not known or not device_of(x.device.type).is_host:
        return False
    numbers = _numbers(node, dims - 2)
    if not has_phases(w.shape, numbers, node.args[8]):
        return False
    return fewest_channels(x.shape[2:], w.shape, numbers) >= _FEWEST_CHANNELS


def _numbers(node: Node, dims: int) -> Numbers:
    stride, padding, dilation, margin = (
        [*numbers] * (dims // len(numbers)) for numbers in (*node.args[3:6], node.args[7])
    )
    return stride, padding, dilation, margin


def _lies_last(value: torch.Tensor) -> bool:
    """Whether an image lies with its channels last, as far as that can be seen."""
    _, channels, _, width = value.shape
    strides = 1, width * channels, channels
    sides = zip(value.shape[1:], value.stride()[1:], strides, strict=True)
    return all(size == 1 or found == wanted for size, found, wanted in sides)
