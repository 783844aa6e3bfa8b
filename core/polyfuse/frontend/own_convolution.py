"""Transposed convolutions as plain ones, for where no library computes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["forward_convolution"]

_aten = torch.ops.aten


def forward_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """`aten.convolution`: a transposed one reads its input with zeros between the elements, by the weight
    turned round; others stay.
    """
    if not transposed:
        return NotImplemented
    dims = len(stride)
    for d in range(dims):
        x = _spread(x, x.dim() - dims + d, stride[d])
    margins: list[int] = []
    for d in reversed(range(dims)):
        reach = dilation[d] * (weight.shape[2 + d] - 1) - padding[d]
        margins += [reach, reach + output_padding[d]]
    x = _aten.constant_pad_nd(x, margins)
    inputs, outputs, *window = weight.shape
    turned = weight.reshape(groups, inputs // groups, outputs, *window).transpose(1, 2)
    turned = turned.reshape(groups * outputs, inputs // groups, *window).flip([2 + d for d in range(dims)])
    ones, none = [1] * dims, [0] * dims
    return _aten.convolution(x, turned, bias, ones, none, dilation, False, none, groups)


def _spread(x: Tensor, dim: int, step: int) -> Tensor:
    """The elements along a dimension with `step - 1` zeros between neighbours."""
    if step == 1:
        return x
    pairs = _aten.constant_pad_nd(x.unsqueeze(dim + 1), [0, 0] * (x.dim() - dim - 1) + [0, step - 1])
    together = pairs.flatten(dim, dim + 1)
    return together.narrow(dim, 0, (x.shape[dim] - 1) * step + 1)
