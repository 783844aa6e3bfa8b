"""Linear layers and convolutions between conversions, as products of the quantised numbers themselves."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext
from polyfuse_quantized.products import CONVOLUTION, LINEAR, available

_DEQUANTIZE: Final = "quantized_decomposed.dequantize_per_tensor.default"
_QUANTIZE: Final = "quantized_decomposed.quantize_per_tensor.default"
_OF_CHANNELS: Final = "quantized_decomposed.dequantize_per_channel.default"
_TRANSPOSED: Final = ("aten.permute.default", "aten.t.default")
_ORDERS: Final = (
    "aten.view.default",
    "aten.permute.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dims",
    "aten.clone.default",
    "aten.expand.default",
)
"""What only puts values in another order or shape."""


def linear(ctx: RewriteContext, node: Node) -> Node | None:
    """`addmm(bias, dequantize(x), dequantize(weight).t())` is one call."""
    bias, x, transposed = (None, *node.args) if ctx.is_called(node, "aten.mm.default") else node.args
    if node.kwargs or not _is_wanted(ctx) or not _is_vector(ctx, bias):
        return None
    if not ctx.is_called(transposed, *_TRANSPOSED):
        return None
    if ctx.is_called(transposed, "aten.permute.default") and list(transposed.args[1]) != [1, 0]:
        return None
    weight = _weight(ctx, transposed.args[0])
    numbers = _bytes_of(ctx, x, (torch.uint8, torch.int8))
    if weight is None or numbers is None:
        return None
    return ctx.call(LINEAR, (*numbers, *weight, bias, 1.0, 0, torch.float32, "none"))


def convolution(ctx: RewriteContext, node: Node) -> Node | None:
    """`convolution(dequantize(x), dequantize(weight), bias)` is one call."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    image = ctx.tensor(x)
    if not _is_wanted(ctx) or transposed or image is None or image.dim() != 4 or not _is_vector(ctx, bias):
        return None
    if not all(isinstance(n, int) for n in (*stride, *padding, *dilation, groups)):
        return None
    parameters, numbers = _weight(ctx, weight), _bytes_of(ctx, x, (torch.uint8,))
    if parameters is None or numbers is None:
        return None
    made = ctx.tensor(node)
    last = made is not None and made.is_contiguous(memory_format=torch.channels_last)
    window = ([*stride], [*padding], [*dilation], groups, last)
    return ctx.call(CONVOLUTION, (*numbers, *parameters, bias, *window, 1.0, 0, torch.float32, "none"))


def requantised(ctx: RewriteContext, node: Node) -> Node | None:
    """`quantize(relu(call))` of such a call is a call that stores quantised numbers."""
    source, scale, zero, low, high, dtype = node.args
    if dtype not in (torch.uint8, torch.int8) or not isinstance(scale, float) or not isinstance(zero, int):
        return None
    limits = torch.iinfo(dtype)
    if (low, high) != (limits.min, limits.max) or not low <= zero <= high or not scale > 0:
        return None
    between: list[Node] = []
    activation = "none"
    while ctx.is_called(source, "aten.relu.default", *_ORDERS):
        if len(source.users) != 1:
            return None
        if ctx.is_called(source, "aten.relu.default"):
            activation = "relu"
        else:
            between.append(source)
        source = source.args[0]
    if not ctx.is_called(source, LINEAR, CONVOLUTION) or len(source.users) != 1:
        return None
    if source.args[-2:] != (torch.float32, "none") or (dtype is torch.int8 and activation != "none"):
        return None
    found = ctx.call(str(source.target), (*source.args[:-4], scale, zero, dtype, activation))
    for step in reversed(between):
        found = ctx.call(str(step.target), (found, *step.args[1:]), step.kwargs)
    return found


def _is_wanted(ctx: RewriteContext) -> bool:
    """Whether weights may be packed once, and sums may be rounded otherwise than eager mode rounds them."""
    return ctx.settings.freezing and ctx.settings.numerics == "fast" and available()


def _is_vector(ctx: RewriteContext, bias: Any) -> bool:
    tensor = ctx.tensor(bias)
    return bias is None or (tensor is not None and tensor.dim() == 1 and tensor.dtype is torch.float32)


def _weight(ctx: RewriteContext, node: Any) -> tuple[Any, ...] | None:
    """A parameter of signed bytes, and its scales and zero points for each result."""
    source = node
    if ctx.is_called(source, "aten.clone.default"):
        source = source.args[0]
    if not ctx.is_called(source, _OF_CHANNELS) or source.kwargs:
        return None
    weight, scales, zeros, axis, _, _, dtype = source.args
    scaled = ctx.tensor(scales)
    if axis != 0 or dtype is not torch.int8 or zeros is None or scaled is None:
        return None
    plain = all(isinstance(n, Node) and n.op in ("placeholder", "get_attr") for n in (weight, scales, zeros))
    return (weight, scales, zeros) if plain and scaled.dtype is torch.float32 else None


def _bytes_of(ctx: RewriteContext, node: Any, kinds: tuple[torch.dtype, ...]) -> tuple[Any, ...] | None:
    """The quantised numbers behind an operand in its shape and order, their scale and zero point."""
    steps: list[Node] = []
    source = node
    while ctx.is_called(source, *_ORDERS):
        steps.append(source)
        source = source.args[0]
    if not ctx.is_called(source, _DEQUANTIZE) or source.kwargs:
        return None
    found, scale, zero, _, _, dtype = source.args
    if dtype not in kinds or not isinstance(scale, float) or not isinstance(zero, int) or not scale > 0:
        return None
    for step in reversed(steps):
        found = ctx.call(str(step.target), (found, *step.args[1:]), step.kwargs)
    return found, scale, zero


REWRITES: Final = (
    Rewrite("int8-linear", ("aten.addmm.default", "aten.mm.default"), linear, stages=("inference",)),
    Rewrite("int8-convolution", ("aten.convolution.default",), convolution, stages=("inference",)),
    Rewrite("int8-results", (_QUANTIZE,), requantised, stages=("inference",)),
)
"""The rewrites of products, in the order in which they apply."""
