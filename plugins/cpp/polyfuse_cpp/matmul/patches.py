"""Convolutions whose windows do not overlap, with which models of images cut these into patches: as linear
layers of one row for each patch.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.fx import Node

from polyfuse.kit import patches_as_rows
from polyfuse.plugin import Rewrite, RewriteContext
from polyfuse_cpp.isa import choose_isa, has_pair_products

_MOST_CHANNELS: Final = 4
"""Channels of an image; of what has more, runs of channels are long enough for windows in registers."""
_DEEP: Final = 256
"""Numbers of a patch from which that is faster."""
_RANK: Final = 4


def as_rows(ctx: RewriteContext, node: Node) -> Node | None:
    """A matmul of patches with the weight, where a convolution in bf16 has few channels, large windows that
    touch each other, and the CPU multiplies pairs, in matrix registers or without.
    """
    x, w = ctx.tensor(node.args[0]), ctx.tensor(node.args[1])
    if x is None or w is None or not _pays(ctx, x, w):
        return None
    return patches_as_rows(ctx, node)


def _pays(ctx: RewriteContext, x: torch.Tensor, w: torch.Tensor) -> bool:
    settings = ctx.settings
    if settings.gemm == "library" or settings.numerics == "eager":
        return False
    if x.device.type != "cpu" or not x.dtype == w.dtype == torch.bfloat16 or not x.dim() == w.dim() == _RANK:
        return False
    if not all(isinstance(n, int) for n in w.shape) or w.shape[1] > _MOST_CHANNELS or w[0].numel() < _DEEP:
        return False
    return has_pair_products(choose_isa(str(settings.plugin_option("cpp", "isa", "") or "")))


REWRITES: Final = (Rewrite("patches-as-rows", ("aten.convolution.default",), as_rows, ("inference",)),)
"""What the plugin's hook offers."""
