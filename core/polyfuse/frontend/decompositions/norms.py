"""Norms whose pieces share the loops over a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import shapes

__all__ = ["group_norm"]


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Any,
    channels: Any,
    rest: Any,
    groups: Any,
    eps: float,
) -> Any:
    """Group norm on a host of what lies row by row, normalised as (n, groups, channels of a group, rest): the
    kernel that sums a group writes the results while the group is in the cache.

    Torch's pieces compute a factor and a term for each channel, which is a loop neither over groups nor over
    their elements, so that sums and results are kernels of their own. Where the channels are last, a group is
    no row in memory, and those pieces are better.
    """
    if not device_of(str(x.device)).is_host or not x.is_floating_point() or shapes.is_unbacked(x):
        return NotImplemented
    if not x.is_contiguous() or channels % groups != 0:
        return NotImplemented
    kind = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    grouped = (n, groups, channels // groups, rest)
    rows = x.view(grouped).to(kind)
    variance, mean = torch.var_mean(rows, dim=(2, 3), correction=0, keepdim=True)
    rstd = torch.rsqrt(variance + eps)
    each = (1, groups, channels // groups, 1)
    factor = rstd if weight is None else rstd * weight.view(each)
    found = (rows - mean) * factor
    if bias is not None:
        found = found + bias.view(each)
    return found.to(x.dtype).view(x.shape), mean.view(n, groups).to(x.dtype), rstd.view(n, groups).to(x.dtype)
