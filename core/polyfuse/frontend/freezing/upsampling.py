"""Transposed convolutions whose windows lie side by side: each pixel gives a block of results, which no other
pixel adds to. They are a convolution of windows of one pixel, with a channel for each number of a block.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.rewrites.tools import Rewriting, tensor_value
from polyfuse.runtime.devices.registry import device_of

aten = torch.ops.aten

_FEWEST_CHANNELS: Final = 16
"""Numbers of a block, from which on a convolution to as many channels fills vectors."""


def spread_blocks(state: Rewriting, fixed: dict[Node, None]) -> int:
    """Rewrite those of f32 on the CPU whose weights are in `fixed`, which gets what follows from these.

    Returns:
        how many there were.
    """
    count = 0
    for node in state.nodes():
        if node.target is aten.convolution.default and _gives_blocks(node, fixed) and state.spend():
            _rewrite(state, node, fixed)
            count += 1
    return count


def _gives_blocks(conv: Node, fixed: dict[Node, None]) -> bool:
    image, weight, bias, stride, padding, dilation, transposed, margin, groups = conv.args
    if not transposed or groups != 1 or weight not in fixed or not (bias is None or bias in fixed):
        return False
    values = [tensor_value(node) for node in (image, weight, conv)]
    x, w, result = values
    if x is None or w is None or result is None or x.dim() != 4:
        return False
    known = all(isinstance(n, int) for value in (x, result) for n in value.shape[1:])
    if not known or any(value.dtype is not torch.float32 for value in values if value is not None):
        return False
    last = all(tuple(v.stride()[1:]) == (1, v.shape[3] * v.shape[1], v.shape[1]) for v in (x, result))
    window = list(w.shape[2:])
    side_by_side = _pair(stride) == window and _pair(dilation) == [1, 1]
    whole = _pair(padding) == [0, 0] == _pair(margin)
    many = w.shape[1] * window[0] * window[1] >= _FEWEST_CHANNELS
    return last and side_by_side and whole and many and device_of(x.device.type).is_host


def _pair(numbers: Any) -> list[int]:
    return list(numbers) * (2 // len(numbers))


def _rewrite(state: Rewriting, conv: Node, fixed: dict[Node, None]) -> None:
    image, weight, bias = conv.args[:3]
    x, w = tensor_value(image), tensor_value(weight)
    assert x is not None and w is not None
    inputs, height, width = x.shape[1:]
    _, outputs, down, across = w.shape
    channels = down * across * outputs

    def call(target: Any, *args: Any) -> Node:
        return state.call_before(conv, target, args, {})

    def of_weights(target: Any, *args: Any, **kwargs: Any) -> Node:
        made = state.call_before(conv, target, args, kwargs)
        fixed[made] = None
        return made

    # a block's numbers in the order in which they will lie: rows, columns, channels
    blocks = of_weights(aten.permute.default, weight, [2, 3, 1, 0])
    blocks = of_weights(aten.clone.default, blocks, memory_format=torch.contiguous_format)
    blocks = of_weights(aten.view.default, blocks, [channels, inputs, 1, 1])
    if bias is not None:
        bias = of_weights(aten.repeat.default, bias, [down * across])
    ones, none = [1, 1], [0, 0]
    made = call(aten.convolution.default, image, blocks, bias, ones, none, ones, False, none, 1)
    made = call(aten.permute.default, made, [0, 2, 3, 1])
    made = call(aten.view.default, made, [-1, height, width, down, across, outputs])
    made = call(aten.permute.default, made, [0, 1, 3, 2, 4, 5])
    made = state.call_before(conv, aten.clone.default, (made,), {"memory_format": torch.contiguous_format})
    made = call(aten.view.default, made, [-1, height * down, width * across, outputs])
    made = call(aten.permute.default, made, [0, 3, 1, 2])
    conv.replace_all_uses_with(made)
