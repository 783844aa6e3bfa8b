"""Convolutions whose windows do not overlap, with which models of images cut these into patches: as matmuls
of one row for each patch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import Node

    from polyfuse.plugin.rewriting import RewriteContext

_CLONE = "aten.clone.default"


def patches_as_rows(ctx: RewriteContext, node: Node) -> Node | None:
    """A matmul of patches with the weight in place of a convolution of (batch, channels, height, width) and
    (outputs, channels, height, width) with known sizes, whose windows touch each other and cover the image;
    None where it is another one. The patches are a copy of the image, one row for each.
    """
    image, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    source, plain_weight = _unconverted(ctx, image), _unconverted(ctx, weight)
    x, w, result = ctx.tensor(image), ctx.tensor(plain_weight), ctx.tensor(node)
    if x is None or w is None or result is None or not x.dim() == w.dim() == 4:
        return None
    if not all(isinstance(n, int) for n in (*x.shape, *w.shape)) or not w.is_contiguous():
        return None
    batch, channels, *_ = x.shape
    window, counts = tuple(w.shape[2:]), tuple(result.shape[2:])
    plain = not transposed and groups == 1 and not any(padding) and all(d == 1 for d in dilation)
    whole = all(n * k == size for n, k, size in zip(counts, window, x.shape[2:], strict=True))
    if not plain or not whole or tuple(stride) != window:
        return None
    depth, outputs = channels * window[0] * window[1], w.shape[0]
    cut = [batch, channels, counts[0], window[0], counts[1], window[1]]
    split = ctx.call("aten.view.default", (source, cut))
    turned = ctx.call("aten.permute.default", (split, [0, 2, 4, 1, 3, 5]))
    copied = ctx.call(_CLONE, (turned,), {"memory_format": torch.contiguous_format})
    rows = ctx.call("aten.view.default", (copied, [batch * counts[0] * counts[1], depth]))
    flat = ctx.call("aten.view.default", (plain_weight, [outputs, depth]))
    across = ctx.call("aten.permute.default", (flat, [1, 0]))
    if bias is None:
        product = ctx.call("aten.mm.default", (rows, across))
    else:
        product = ctx.call("aten.addmm.default", (bias, rows, across))
    pixels = ctx.call("aten.view.default", (product, [batch, *counts, outputs]))
    found = ctx.call("aten.permute.default", (pixels, [0, 3, 1, 2]))
    if found.meta["val"].stride() == result.stride():
        return found
    return ctx.call(_CLONE, (found,), {"memory_format": torch.contiguous_format})


def _unconverted(ctx: RewriteContext, operand: Any) -> Any:
    """What a copy that lays channels last is made of; the patches are a copy themselves."""
    return operand.args[0] if ctx.is_called(operand, _CLONE) else operand
