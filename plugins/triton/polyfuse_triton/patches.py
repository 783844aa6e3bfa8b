"""Convolutions that cut images into patches, as matmuls of one row for each patch.

The library has fast kernels of 16 bits for channels in multiples of eight. Images have three, which it pads,
to convolve them with a kernel for older devices.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import Node

from polyfuse.kit import patches_as_rows
from polyfuse.plugin import Rewrite, RewriteContext

_TOGETHER: Final = 8
"""Channels in multiples of which the library convolves numbers of 16 bits well."""
_DEEP: Final = 256
"""Numbers of a patch from which on this was measured."""


def as_rows(ctx: RewriteContext, node: Node) -> Node | None:
    """A matmul of patches with the weight, where a convolution in 16 bits has fewer than eight channels and
    windows that touch each other.
    """
    x, w = ctx.tensor(node.args[0]), ctx.tensor(node.args[1])
    if x is None or w is None or ctx.settings.numerics == "eager":
        return None
    if x.dtype != w.dtype or x.dtype not in (torch.bfloat16, torch.float16):
        return None
    depth = w.shape[1:].numel()
    if not isinstance(depth, int) or w.shape[1] >= _TOGETHER or depth < _DEEP:
        return None
    return patches_as_rows(ctx, node)


REWRITES: Final = (
    Rewrite("patches-as-rows", ("aten.convolution.default",), as_rows, ("inference", "forward")),
)
"""The rewrites of this plugin."""
