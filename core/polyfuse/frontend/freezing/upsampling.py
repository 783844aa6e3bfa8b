"""Transposed convolutions whose windows lie side by side become convolutions of windows of one pixel."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.frontend.decompositions.without_libraries import blocks_of_pixels, lie_side_by_side
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
    pairs = [list(numbers) * (2 // len(numbers)) for numbers in (stride, padding, dilation, margin)]
    side_by_side = lie_side_by_side(window, *pairs)
    many = w.shape[1] * window[0] * window[1] >= _FEWEST_CHANNELS
    return last and side_by_side and many and device_of(x.device.type).is_host


def _rewrite(state: Rewriting, conv: Node, fixed: dict[Node, None]) -> None:
    image, weight, bias = conv.args[:3]
    x, w = tensor_value(image), tensor_value(weight)
    assert x is not None and w is not None

    def call(target: Any, *args: Any, **kwargs: Any) -> Node:
        return state.call_before(conv, target, args, kwargs)

    def of_weight(target: Any, *args: Any, **kwargs: Any) -> Node:
        made = call(target, *args, **kwargs)
        fixed[made] = None
        return made

    sizes = -1, *x.shape[2:]
    conv.replace_all_uses_with(
        blocks_of_pixels(call, of_weight, (image, weight, bias), sizes, w.shape, last=True)
    )
