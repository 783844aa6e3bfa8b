"""Convolutions of bf16 whose results are one number wide, which oneDNN computes wrongly on CPUs with matrix
registers if windows move by more than one number along that axis.

Its kernel for matrix registers leaves rows of the result unwritten, so that they are what the memory held
before: with torch 2.11 and 2.13 a window of 3x3 with a stride of 2 gives such rows for an image of 12x2, and
none for 8x2 or 12x3. The stride does not matter along an axis with one window. With a stride of one, and of
image and weight only what meet, results are right.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext
from polyfuse_cpp.isa import choose_isa, has_matrix_registers

_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats of images and volumes, by their number of dimensions."""


def without_stride(ctx: RewriteContext, node: Node) -> Node | None:
    """The convolution with a stride of one along the last axis, if there is one window along it."""
    image, weight, bias, *numbers, transposed, margin, groups = node.args
    stride, padding, dilation = (list(n) for n in numbers)
    x, w, result = ctx.tensor(image), ctx.tensor(weight), ctx.tensor(node)
    if x is None or w is None or result is None or x.dim() not in _LAST or transposed:
        return None
    if x.device.type != "cpu" or not x.dtype == w.dtype == torch.bfloat16:
        return None
    across, taps, count = x.shape[-1], w.shape[-1], result.shape[-1]
    if not all(isinstance(n, int) for n in (across, taps)) or count != 1 or stride[-1] == 1 or taps == 1:
        return None
    if not has_matrix_registers(choose_isa("")):  # the library's choice, whatever the option says
        return None
    step, before = dilation[-1], padding[-1]
    first, last = -(-before // step), min(taps - 1, (across - 1 + before) // step)
    if last < first:  # the window meets nothing but its margin
        return None
    begin = first * step - before
    image = _part(ctx, image, begin, begin + (last - first) * step + 1, across)
    weight = _part(ctx, weight, first, last + 1, taps)
    steps, margins = [*stride[:-1], 1], [*padding[:-1], 0]
    args = (image, weight, bias, steps, margins, dilation, transposed, margin, groups)
    found = ctx.call("aten.convolution.default", args)
    if found.meta["val"].stride() == result.stride():
        return found
    last_format = _LAST[x.dim()]
    dense = torch.contiguous_format if result.is_contiguous() else last_format
    if not result.is_contiguous(memory_format=dense):
        return None
    copied = ctx.call("aten.clone.default", (found,), {"memory_format": dense})
    return copied if copied.meta["val"].stride() == result.stride() else None


def _part(ctx: RewriteContext, operand: Any, begin: int, end: int, size: int) -> Any:
    """What lies between two numbers of the last axis."""
    return operand if (begin, end) == (0, size) else ctx.call("aten.slice.Tensor", (operand, -1, begin, end))


REWRITES: Final = (
    Rewrite("single-windows", ("aten.convolution.default",), without_stride, ("inference", "forward")),
)
"""What the plugin's hook offers."""
