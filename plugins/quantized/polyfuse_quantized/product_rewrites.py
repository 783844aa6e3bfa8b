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


_NOTHING: Final = (None, 1.0, 0)
"""What is added to a convolution without a residual."""

_ADDED: Final = slice(7, 10)
_LAST: Final = 14
"""Where that, and whether the channels of the result come last, stand among its arguments."""


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
    window = ([*stride], [*padding], [*dilation], groups, _is_last(ctx, node))
    return ctx.call(
        CONVOLUTION, (*numbers, *parameters, bias, *_NOTHING, *window, 1.0, 0, torch.float32, "none")
    )


def requantised(ctx: RewriteContext, node: Node) -> Node | None:
    """`quantize(relu(call + dequantize(other)))` of such a call is a call that stores quantised numbers; the
    sum with a residual only of a convolution, and the ReLU where there is one.
    """
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
    source, added = _residual(ctx, source) if dtype is torch.uint8 else (source, _NOTHING)
    if not ctx.is_called(source, LINEAR, CONVOLUTION) or len(source.users) != 1:
        return None
    if source.args[-2:] != (torch.float32, "none") or (dtype is torch.int8 and activation != "none"):
        return None
    args = [*source.args[:-4], scale, zero, dtype, activation]
    if added is not _NOTHING:
        # a sum may lie as what is added does
        args[_ADDED] = added
        args[_LAST] = _is_last(ctx, node) if not between else args[_LAST]
    found = ctx.call(str(source.target), tuple(args))
    for step in reversed(between):
        found = ctx.call(str(step.target), (found, *step.args[1:]), step.kwargs)
    return found


def _residual(ctx: RewriteContext, node: Node) -> tuple[Node, tuple[Any, ...]]:
    """The convolution and what is added to it, of a sum of both that nobody else reads; else the node and
    nothing.
    """
    if not ctx.is_called(node, "aten.add.Tensor") or node.kwargs or len(node.users) != 1:
        return node, _NOTHING
    for call, other in (node.args, node.args[::-1]):
        made, added = ctx.tensor(call), ctx.tensor(other)
        if not ctx.is_called(call, CONVOLUTION) or made is None or added is None or made.shape != added.shape:
            continue
        numbers = _bytes_of(ctx, other, (torch.uint8,))
        if numbers is not None and call.args[_ADDED] == _NOTHING:
            return call, numbers
    return node, _NOTHING


def _is_last(ctx: RewriteContext, node: Node) -> bool:
    made = ctx.tensor(node)
    return made is not None and made.is_contiguous(memory_format=torch.channels_last)


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
