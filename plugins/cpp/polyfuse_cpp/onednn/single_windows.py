"""Convolutions of bf16 whose results are one number wide, which oneDNN computes wrongly on CPUs with matrix
registers.

Its kernel for matrix registers leaves rows of such results unwritten, so that they are what the memory held
before: with torch 2.11 and 2.13 a window of 3x3 with a stride of 2 gives such rows for an image of 12x2, and
none for 8x2 or 12x3. With rows and columns exchanged, results are right.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext
from polyfuse_cpp.isa import choose_isa, has_matrix_registers

_RANK: Final = 4


def turned(ctx: RewriteContext, node: Node) -> Node | None:
    """The convolution of the image with its rows as columns, if the result has one column of several rows."""
    image, weight, bias, *numbers, transposed, margin, groups = node.args
    x, w, result = ctx.tensor(image), ctx.tensor(weight), ctx.tensor(node)
    if x is None or w is None or result is None or x.dim() != _RANK or transposed:
        return None
    if x.device.type != "cpu" or not x.dtype == w.dtype == torch.bfloat16:
        return None
    rows, columns = result.shape[-2:]
    if not isinstance(columns, int) or columns != 1 or w.shape[-1] == 1:
        return None
    if isinstance(rows, int) and rows == 1:
        return None
    if not has_matrix_registers(choose_isa("")):  # the library's choice, whatever the option says
        return None
    order = [0, 1, 3, 2]
    operands = (ctx.call("aten.permute.default", (operand, order)) for operand in (image, weight))
    steps = ([*n[:-2], n[-1], n[-2]] for n in map(list, numbers))
    found = ctx.call("aten.convolution.default", (*operands, bias, *steps, transposed, margin, groups))
    found = ctx.call("aten.permute.default", (found, order))
    if found.meta["val"].stride() == result.stride():
        return found
    dense = torch.contiguous_format if result.is_contiguous() else torch.channels_last
    if not result.is_contiguous(memory_format=dense):
        return None
    copied = ctx.call("aten.clone.default", (found,), {"memory_format": dense})
    return copied if copied.meta["val"].stride() == result.stride() else None


REWRITES: Final = (
    Rewrite("single-windows", ("aten.convolution.default",), turned, ("inference", "forward")),
)
"""What the plugin's hook offers."""
