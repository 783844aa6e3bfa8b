"""Quantised numbers in a captured graph: behind the conversions that make floating point of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import RewriteContext

DEQUANTIZE: Final = "quantized_decomposed.dequantize_per_tensor.default"
QUANTIZE: Final = "quantized_decomposed.quantize_per_tensor.default"
_BY_TENSORS: Final = "quantized_decomposed.dequantize_per_tensor.tensor"
_OF_CHANNELS: Final = "quantized_decomposed.dequantize_per_channel.default"

ORDERS: Final = (
    "aten.view.default",
    "aten.permute.default",
    "aten.unsqueeze.default",
    "aten.squeeze.dims",
    "aten.clone.default",
    "aten.expand.default",
)
"""What only puts values in another order or shape."""


@dataclass(frozen=True)
class Stored:
    """Numbers of one byte, which stand for ``(numbers - zero) * scale``.

    Attributes:
        numbers: a node that makes them, in the shape in which they are read.
        scale: a number, or a node that makes one, or one for each row of a weight.
        zero: the same for an integer.
        kind: of the numbers.
    """

    numbers: Node
    scale: Any
    zero: Any
    kind: torch.dtype

    @property
    def is_known(self) -> bool:
        """Whether scale and zero point are numbers in the graph."""
        return isinstance(self.scale, float) and isinstance(self.zero, int)


def activation(ctx: RewriteContext, node: Any) -> Stored | None:
    """The quantised numbers behind an operand, in its shape and order, with one scale and zero point."""
    steps: list[Node] = []
    source = node
    while ctx.is_called(source, *ORDERS):
        steps.append(source)
        source = source.args[0]
    found = _of_tensor(ctx, source)
    if found is None:
        return None
    numbers = found.numbers
    for step in reversed(steps):
        numbers = ctx.call(str(step.target), (numbers, *step.args[1:]), step.kwargs)
    return Stored(numbers, found.scale, found.zero, found.kind)


def weight(ctx: RewriteContext, node: Any) -> Stored | None:
    """The signed bytes behind a weight, with one scale, or one for each row (the first dimension). They lack
    dimensions of one that the weight got behind the conversion.
    """
    source = node
    while ctx.is_called(source, "aten.clone.default", "aten.unsqueeze.default"):
        source = source.args[0]
    if ctx.is_called(source, DEQUANTIZE):
        found = _of_tensor(ctx, source)
        return found if found is not None and found.kind is torch.int8 else None
    if not ctx.is_called(source, _OF_CHANNELS) or source.kwargs:
        return None
    numbers, scales, zeros, axis, _, _, kind = source.args
    scaled = ctx.tensor(scales)
    if axis != 0 or kind is not torch.int8 or zeros is None or scaled is None:
        return None
    return Stored(numbers, scales, zeros, kind) if scaled.dtype is torch.float32 else None


def is_vector(ctx: RewriteContext, bias: Any) -> bool:
    """Whether a bias has a number for each column, or is none."""
    tensor = ctx.tensor(bias)
    return bias is None or (tensor is not None and tensor.dim() == 1 and tensor.dtype is torch.float32)


def _of_tensor(ctx: RewriteContext, node: Any) -> Stored | None:
    if not ctx.is_called(node, DEQUANTIZE, _BY_TENSORS) or node.kwargs:
        return None
    numbers, scale, zero, _, _, kind = node.args
    if kind not in (torch.uint8, torch.int8):
        return None
    if ctx.is_called(node, DEQUANTIZE):
        valid = isinstance(scale, float) and isinstance(zero, int) and scale > 0
        return Stored(numbers, scale, zero, kind) if valid else None
    parameters = ctx.tensor(scale), ctx.tensor(zero)
    single = all(t is not None and t.numel() == 1 for t in parameters)
    return Stored(numbers, scale, zero, kind) if single else None
