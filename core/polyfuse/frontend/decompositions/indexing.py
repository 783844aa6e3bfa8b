"""Decompositions of operators on positions that torch has none for: each to one gather or one scatter.

A decomposition may return `NotImplemented`: the operator then stays whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from polyfuse.frontend.decompositions.layouts import has_channels_last
from polyfuse.frontend.decompositions.operators import like_layout
from polyfuse.torch_compat.tracing import fx, shapes

_FEW_WINDOWS = 25
"""Over one element: so many are gathered from."""

_FEW_OF_PLANES = 9
"""The same on a CPU where planes are contiguous, and stores into them stay in its caches."""


def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    """Rows added to the rows that `index` names; the result is contiguous. Eager mode refuses rows of another
    type: it is left to do so."""
    if x.dtype != source.dtype:
        return NotImplemented
    if alpha != 1:
        source = (source * alpha).to(x.dtype)
    if x.dim() == 0:
        return torch.index_put(x.view(1), [index.view(1)], source.view(1), accumulate=True).view(())
    indices = [*(None for _ in range(dim % x.dim())), index.view(-1)]
    return torch.ops.aten.index_put.default(x.contiguous(), indices, source, True)


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """One number in the rows that `index` names; the result lies as a copy of `x` would. That of torch 2.11
    ends with a copy in place, which AOTAutograd refuses."""
    if x.dim() == 0:
        return index_fill(x.view(1), 0, index, value).view(()).clone()
    if not isinstance(value, Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, layout=x.layout, device=x.device)
    dim = dim % x.dim()
    rows = value.to(x.dtype).expand([*x.shape[:dim], index.numel(), *x.shape[dim + 1 :]])
    indices = [*(None for _ in range(dim)), index.view(-1)]
    filled = torch.ops.aten.index_put.default(x, indices, rows)
    return like_layout(filled, torch.empty_like(x))


def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """Rows combined into the rows that `index` names."""
    if x.dim() == 0:
        row = index_reduce(x.view(1), 0, index.view(1), source.view(1), reduce, include_self=include_self)
        return row.view(())
    dim = dim % x.dim()
    shape = [-1 if d == dim else 1 for d in range(x.dim())]
    index = index.view(shape).expand_as(source)
    return torch.scatter_reduce(x, dim, index, source, reduce, include_self=include_self)


def embedding_dense_backward(
    grad: Tensor, indices: Tensor, rows: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """The gradient of a table of `rows`, where its forward may be left out, which would refuse a wrong index:
    so the additions refuse it."""
    if fx.traces_backward():
        return NotImplemented
    if scale_grad_by_freq:
        counts = torch.index_put(
            indices.new_zeros(rows), [indices], torch.ones_like(indices), accumulate=True
        )
        grad = grad / torch.ops.aten.index.Tensor(counts, [indices]).unsqueeze(-1)
    if padding_idx >= 0:
        grad = torch.where((indices != padding_idx).unsqueeze(-1), grad, 0)
    table = grad.new_zeros((rows, *grad.shape[indices.dim() :]))
    return torch.index_put(table, [indices], grad, accumulate=True)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Elements read at positions counted through the whole tensor."""
    return torch.ops.aten.index.Tensor(x.reshape(-1), [index.reshape(-1)]).view(index.shape)


def unsafe_masked_index(x: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: float) -> Any:
    """Elements read where `mask` holds. Positions below zero count from the end, as in eager mode."""
    if not shapes.is_unbacked(x) and x.numel() == 0:
        return NotImplemented
    inside = [i if i is None else i.clamp(-n, n - 1) for i, n in zip(indices, x.shape, strict=False)]
    return torch.ops.aten._unsafe_index.Tensor(x, inside).masked_fill(~mask, fill)


def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """Elements written at positions counted through the whole tensor. The result lies as a copy would."""
    flat = torch.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return like_layout(flat.view(x.shape), torch.empty_like(x))


def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """The masked elements, taken in order from `source`."""
    # how many there are may be known only when the graph runs: there may be none to take
    if x.dtype != source.dtype or shapes.is_unbacked(source) or source.numel() == 0:
        return NotImplemented
    x, mask = torch.broadcast_tensors(x, mask)
    # beyond the last element exactly where the source is too short: that is checked where it is read
    order = (mask.reshape(-1).cumsum(0) - 1).clamp(min=0)
    taken = source.reshape(-1)[order].view(x.shape)
    return torch.where(mask, taken, x)


def adaptive_max_pool_backward(grad: Tensor, x: Tensor, indices: Tensor, *, rank: int) -> Any:
    """Each gradient added where its maximum was found."""
    return _scattered(grad, x, indices, rank, channels_last=rank == 2)


def max_pool_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
    *,
    rank: int,
) -> Any:
    """Each gradient added where its maximum was found, where many windows are over each element."""
    kernel, step, gaps = (tuple(v) * (rank if len(v) == 1 else 1) for v in (kernel_size, stride, dilation))
    over = math.prod(-(-k // s) for k, s in zip(kernel, step or kernel, strict=True))
    planes = x.device.type == "cpu" and x.stride(-1) == 1
    if over <= (_FEW_OF_PLANES if planes else _FEW_WINDOWS) and all(d == 1 for d in gaps):
        return NotImplemented
    return _scattered(grad, x, indices, rank)


def _scattered(grad: Tensor, x: Tensor, indices: Tensor, rank: int, channels_last: bool = True) -> Tensor:
    """Laid out as eager mode does: with the channels last where those of `x` are, if it knows that layout."""
    if channels_last and x.dim() == rank + 2 and not shapes.is_unbacked(x) and has_channels_last(x):
        order, inverse = (0, *range(2, rank + 2), 1), (0, rank + 1, *range(1, rank + 1))
        count, channels, *plane = x.shape
        zeros = grad.new_zeros((count, math.prod(plane), channels))
        found = math.prod(grad.shape[2:])  # not -1: the batch may be empty
        index, source = (t.permute(order).reshape(count, found, channels) for t in (indices, grad))
        rows = torch.scatter_add(zeros, 1, index, source)
        return rows.view(count, *plane, channels).permute(inverse)
    lead = x.shape[:-rank]
    zeros, found = grad.new_zeros((*lead, math.prod(x.shape[-rank:]))), math.prod(grad.shape[-rank:])
    rows = torch.scatter_add(zeros, -1, indices.reshape(*lead, found), grad.reshape(*lead, found))
    return rows.view(x.shape)
