"""Convolutions whose windows do not overlap, with which models of images cut these into patches: as linear
layers of one row for each patch.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Node

from polyfuse.plugin import Rewrite, RewriteContext
from polyfuse_cpp.isa import choose_isa, has_matrix_registers

_MOST_CHANNELS: Final = 4
"""Channels of an image; of what has more, runs of channels are long enough for windows in registers."""
_DEEP: Final = 256
"""Numbers of a patch from which that is faster."""
_RANK: Final = 4


def as_rows(ctx: RewriteContext, node: Node) -> Node | None:
    """A matmul of patches with the weight, where a convolution in bf16 has few channels, large windows that
    touch each other, and the CPU has matrix registers.
    """
    image, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    x, w, result = ctx.tensor(image), ctx.tensor(weight), ctx.tensor(node)
    if x is None or w is None or result is None or not _pays(ctx, x, w):
        return None
    batch, channels, *_ = x.shape
    window, counts = tuple(w.shape[2:]), tuple(result.shape[2:])
    plain = not transposed and groups == 1 and not any(padding) and all(d == 1 for d in dilation)
    whole = all(n * k == size for n, k, size in zip(counts, window, x.shape[2:], strict=True))
    if not plain or not whole or tuple(stride) != window:
        return None
    source: Any = image
    if ctx.is_called(image, "aten.clone.default"):
        source = image.args[0]  # a copy that lays channels last; the patches are one
    depth, outputs = channels * window[0] * window[1], w.shape[0]
    cut = [batch, channels, counts[0], window[0], counts[1], window[1]]
    split = ctx.call("aten.view.default", (source, cut))
    turned = ctx.call("aten.permute.default", (split, [0, 2, 4, 1, 3, 5]))
    copied = ctx.call("aten.clone.default", (turned,), {"memory_format": torch.contiguous_format})
    rows = ctx.call("aten.view.default", (copied, [batch * counts[0] * counts[1], depth]))
    flat = ctx.call("aten.view.default", (weight, [outputs, depth]))
    across = ctx.call("aten.permute.default", (flat, [1, 0]))
    if bias is None:
        product = ctx.call("aten.mm.default", (rows, across))
    else:
        product = ctx.call("aten.addmm.default", (bias, rows, across))
    pixels = ctx.call("aten.view.default", (product, [batch, *counts, outputs]))
    found = ctx.call("aten.permute.default", (pixels, [0, 3, 1, 2]))
    if found.meta["val"].stride() == result.stride():
        return found
    return ctx.call("aten.clone.default", (found,), {"memory_format": torch.contiguous_format})


def _pays(ctx: RewriteContext, x: torch.Tensor, w: torch.Tensor) -> bool:
    settings = ctx.settings
    if settings.gemm == "library" or settings.numerics == "eager":
        return False
    if x.device.type != "cpu" or not x.dtype == w.dtype == torch.bfloat16 or not x.dim() == w.dim() == _RANK:
        return False
    if not all(isinstance(n, int) for n in (*x.shape, *w.shape)) or not w.is_contiguous():
        return False
    if x.shape[1] > _MOST_CHANNELS or w[0].numel() < _DEEP:
        return False
    return has_matrix_registers(choose_isa(str(settings.plugin_option("cpp", "isa", "") or "")))


REWRITES: Final = (Rewrite("patches-as-rows", ("aten.convolution.default",), as_rows, ("inference",)),)
"""What the plugin's hook offers."""
