"""Margins as reads of what they repeat, and gradients that lie as eager mode's do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyfuse.frontend.decompositions.layouts import has_channels_last
from polyfuse.frontend.graph import CHANNELS_LAST
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import decomp, shapes


def pad_circular(x: Tensor, pad: Sequence[Any]) -> Tensor:
    """A window on three periods of the tensor: one pass, where torch writes the middle, then margins.

    The result is contiguous, as eager mode's is.
    """
    if not _is_within_a_period(x, pad):
        refused: Tensor = decomp.composed(torch.ops.aten._pad_circular.default, x, pad)
        return refused
    window = x
    for d, before, after in _margins(x, pad):
        # a margin below nothing cuts off, before the others repeat what is left
        if before < 0 or after < 0:
            cut = max(-before, 0)
            window = window.narrow(d, cut, x.shape[d] - cut - max(-after, 0))
        left, n, lead = max(before, 0), window.shape[d], window.shape[:d]
        periods = window.unsqueeze(d).expand(*lead, 3, *window.shape[d:])
        row = periods.reshape(*lead, 3 * n, *window.shape[d + 1 :])
        window = row.narrow(d, n - left, n + left + max(after, 0))
    return window.clone(memory_format=torch.contiguous_format)


def _margins(x: Tensor, pad: Sequence[Any]) -> list[tuple[int, Any, Any]]:
    """Each padded dimension with its margins before and after, outermost first."""
    first, last = x.dim() - len(pad) // 2, x.dim() - 1
    return [(d, pad[2 * (last - d)], pad[2 * (last - d) + 1]) for d in range(first, x.dim())]


def _is_within_a_period(x: Tensor, pad: Sequence[Any]) -> bool:
    """Whether no margin repeats more than all that is left, and all sizes are known before the program
    runs.
    """
    if shapes.is_unbacked(x) or len(pad) % 2 or len(pad) // 2 > x.dim():
        return False
    for d, before, after in _margins(x, pad):
        left = x.shape[d] + min(before, 0) + min(after, 0)
        if left <= 0 or before > left or after > left:
            return False
    return True


def edge_pad(x: Tensor, pad: Sequence[Any], *, rank: int, margin: str) -> Any:
    """A margin that mirrors or repeats the edge, its channels last where the tensor's are, as eager mode has
    it on the CPU; for releases of torch that say of the result that they are second.
    """
    if decomp.margins_keep_layout() or not device_of(x.device.type).is_host or not _has_channels_last(x):
        return NotImplemented
    # one that lies row by row is left whole
    result = getattr(torch.ops.aten, f"{margin}_pad{rank}d").default(x.contiguous(), pad)
    return result.contiguous(memory_format=CHANNELS_LAST[rank + 2])


def edge_pad_backward(grad: Tensor, x: Tensor, pad: Sequence[Any], *, rank: int, margin: str) -> Any:
    """The gradient of a margin that mirrors or repeats the edge, its channels last where the tensor's are: so
    eager mode's is on the CPU, where torch says of it that they are second.
    """
    if not device_of(x.device.type).is_host or not _has_channels_last(x):
        return NotImplemented
    # of the tensor, the gradient takes its size alone
    operator = getattr(torch.ops.aten, f"{margin}_pad{rank}d_backward").default
    result = operator(grad, x.new_empty(x.shape), pad)
    return result.contiguous(memory_format=CHANNELS_LAST[rank + 2])


def _has_channels_last(x: Tensor) -> bool:
    """Whether the strides say so, of sizes that are known before the program runs."""
    return not shapes.is_unbacked(x) and has_channels_last(x)
