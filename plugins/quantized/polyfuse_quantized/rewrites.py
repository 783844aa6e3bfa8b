"""Quantised numbers that are converted to floating point and back unchanged need not be converted at all."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext

_QUANTIZE: Final = "quantized_decomposed.quantize_per_tensor.default"
_DEQUANTIZE: Final = "quantized_decomposed.dequantize_per_tensor.default"

_VIEWS: Final = (
    "aten.view.default",
    "aten.permute.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dims",
    "aten.slice.Tensor",
    "aten.select.int",
)
"""What only looks at values in another order or shape."""

_MAXIMA: Final = "aten.max_pool2d_with_indices.default"

_SCALES: Final = (2.0**-100, 2.0**100)
"""Far from where a product of the scale and its inverse overflows or loses digits."""


def cancel(ctx: RewriteContext, node: Node) -> Node | None:
    """`quantize(view(dequantize(x)))` with equal parameters is `view(x)`; so it is with maxima of windows.

    A number of up to 16 bits comes back exactly: the relative error of the two products is far below half a
    step of 2**17.
    """
    views: list[Node] = []
    source: Any = node.args[0]
    while ctx.is_called(source, *_VIEWS) or _is_maximum(ctx, source):
        # what torch computes of maxima and their positions, for the maxima alone
        views.append(source if ctx.is_called(source, *_VIEWS) else source.args[0])
        source = views[-1].args[0]
    if not ctx.is_called(source, _DEQUANTIZE) or source.kwargs or source.args[1:] != node.args[1:]:
        return None
    inner, scale, zero_point, low, high, dtype = source.args
    if not (isinstance(scale, float) and _SCALES[0] < scale < _SCALES[1] and isinstance(zero_point, int)):
        return None
    if dtype not in (torch.int8, torch.uint8, torch.int16):
        return None
    limits = torch.iinfo(dtype)
    if (low, high) != (limits.min, limits.max) or not limits.min <= zero_point <= limits.max:
        return None
    for view in reversed(views):
        inner = ctx.call(str(view.target), (inner, *view.args[1:]), view.kwargs)
        if ctx.is_called(view, _MAXIMA):
            inner = ctx.call("operator.getitem", (inner, 0))
    return inner


def _is_maximum(ctx: RewriteContext, node: Any) -> bool:
    """Whether a node is the maxima of windows of what nobody else reads, nor their positions."""
    if not ctx.is_called(node, "operator.getitem") or node.args[1] != 0 or len(node.users) != 1:
        return False
    return ctx.is_called(node.args[0], _MAXIMA) and len(node.args[0].users) == 1


REWRITES: Final = (Rewrite("cancel-conversions", (_QUANTIZE,), cancel),)
"""The rewrites of this plugin."""
