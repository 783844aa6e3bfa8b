"""Linear layers and convolutions between conversions, as products of the quantised numbers themselves."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext
from polyfuse_quantized.integer_matmuls import integer_linear
from polyfuse_quantized.patterns import ORDERS, QUANTIZE, Stored, activation, is_vector, weight
from polyfuse_quantized.products import CONVOLUTION, LINEAR, available

_TRANSPOSED: Final = ("aten.permute.default", "aten.t.default")

_NOTHING: Final = (None, 1.0, 0)
"""What is added to a convolution without a residual."""

_IMAGE: Final = 4
"""Dimensions of an image with its batch and channels: the only convolutions whose sums the library does."""

_FORMATS: Final = {_IMAGE: torch.channels_last, 5: torch.channels_last_3d}

_ADDED: Final = slice(8, 11)
_LAST: Final = 15
"""Where that, and whether the channels of the result come last, stand among its arguments."""


def linear(ctx: RewriteContext, node: Node) -> Node | None:
    """`addmm(bias, dequantize(x), dequantize(weight).t())` multiplies the bytes."""
    bias, x, transposed = (None, *node.args) if ctx.is_called(node, "aten.mm.default") else node.args
    if node.kwargs or not _is_wanted(ctx, node) or not is_vector(ctx, bias):
        return None
    if not ctx.is_called(transposed, *_TRANSPOSED):
        return None
    if ctx.is_called(transposed, "aten.permute.default") and list(transposed.args[1]) != [1, 0]:
        return None
    rows, numbers = weight(ctx, transposed.args[0]), activation(ctx, x)
    if rows is None or numbers is None:
        return None
    if ctx.settings.freezing and _may_pack(ctx, rows, numbers):
        return ctx.call(LINEAR, (*_operands(numbers, rows), bias, 1.0, 0, torch.float32, "none"))
    return integer_linear(ctx, numbers, rows, bias)


def convolution(ctx: RewriteContext, node: Node) -> Node | None:
    """`convolution(dequantize(x), dequantize(weight), bias)` is one call."""
    x, kernel, bias, stride, padding, dilation, transposed, _, groups = node.args
    image = ctx.tensor(x)
    if not _is_wanted(ctx, node) or transposed or image is None or not is_vector(ctx, bias):
        return None
    if not all(isinstance(n, int) for n in (*stride, *padding, *dilation, groups)):
        return None
    channels, numbers = weight(ctx, kernel), activation(ctx, x)
    if channels is None or numbers is None or numbers.kind is not torch.uint8:
        return None
    last = _is_last(ctx, node)
    if last is None or image.dim() != len(stride) + 2 or not _is_of_window(ctx, channels.numbers, kernel):
        return None
    if not _may_pack(ctx, channels, numbers):
        return None
    window = ([*stride], [*padding], [*dilation], groups, last)
    operands = (*_operands(numbers, channels), bias, *_NOTHING, *window)
    return ctx.call(CONVOLUTION, (*operands, 1.0, 0, torch.float32, "none"))


def _is_of_window(ctx: RewriteContext, numbers: Node, kernel: Node) -> bool:
    """Whether a weight has the sizes of what is stored, maybe as one row of an image."""
    stored, wide = ctx.tensor(numbers), ctx.tensor(kernel)
    if stored is None or wide is None:
        return False
    return wide.shape in (stored.shape, (*stored.shape[:2], 1, *stored.shape[2:]))


def _may_pack(ctx: RewriteContext, parameters: Stored, x: Stored) -> bool:
    """Whether the library multiplies these numbers, and their weight may be packed once."""
    if not x.is_known:
        return False
    if isinstance(parameters.scale, Node):
        # with freezing, zero points are looked at once for all calls, too
        looked_at = not ctx.settings.freezing or ctx.may_pack(parameters.zero)
        return looked_at and ctx.may_pack(parameters.numbers)
    return parameters.is_known and parameters.zero == 0 and ctx.may_pack(parameters.numbers)


def _operands(x: Stored, parameters: Stored) -> tuple[Any, ...]:
    read = (x.numbers, x.scale, x.zero, parameters.numbers)
    if isinstance(parameters.scale, Node):
        return *read, parameters.scale, 1.0, parameters.zero
    return *read, None, parameters.scale, None


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
    while ctx.is_called(source, "aten.relu.default", *ORDERS):
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
        args[_LAST] = bool(_is_last(ctx, node)) if not between else args[_LAST]
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
        if not ctx.is_called(call, CONVOLUTION) or made is None or added is None or made.dim() != _IMAGE:
            continue
        if made.shape != added.shape:
            continue
        numbers = activation(ctx, other)
        if numbers is None or numbers.kind is not torch.uint8 or not numbers.is_known:
            continue
        if call.args[_ADDED] == _NOTHING:
            return call, (numbers.numbers, numbers.scale, numbers.zero)
    return node, _NOTHING


def _is_last(ctx: RewriteContext, node: Node) -> bool | None:
    """Whether an image has its channels last; None: nor second, or it is none."""
    made = ctx.tensor(node)
    if made is None:
        return None
    last = _FORMATS.get(made.dim())
    if last is not None and made.is_contiguous(memory_format=last):
        return True
    return False if made.is_contiguous() else None


def _is_wanted(ctx: RewriteContext, node: Node) -> bool:
    """Whether sums may be rounded otherwise than eager mode rounds them, where the library computes."""
    made = ctx.tensor(node)
    on_host = made is not None and made.device.type == "cpu"
    return on_host and ctx.settings.numerics == "fast" and available()


REWRITES: Final = (
    Rewrite("int8-linear", ("aten.addmm.default", "aten.mm.default"), linear, stages=("inference",)),
    Rewrite("int8-convolution", ("aten.convolution.default",), convolution, stages=("inference",)),
    Rewrite("int8-results", (QUANTIZE,), requantised, stages=("inference",)),
)
"""The rewrites of products, in the order in which they apply."""
