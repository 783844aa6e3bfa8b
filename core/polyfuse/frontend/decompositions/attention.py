"""Attention whose operands lie as no fused kernel of the library takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import decomp, shapes


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Tensor:
    """Copy what is not contiguous along its last axis where the library would compute attention by matmuls
    for that reason alone (`Device.fused_attention`): a relative position's bias is such a mask.

    Args:
        query: (..., heads, queries, size)
        key: (..., heads, keys, size)
        value: (..., heads, keys, size of values)
        attn_mask: broadcasts to (..., heads, queries, keys)

    Returns:
        (..., heads, queries, size of values), laid out as matmuls lay it out. With dropout, nothing is
        copied: another kernel would draw other random numbers.
    """
    op = torch.ops.aten.scaled_dot_product_attention.default
    operands = (query, key, value, attn_mask)
    given = [t for t in operands if t is not None]
    plain = all(t.layout is torch.strided and not shapes.is_unbacked(t) for t in given)
    copied = plain and not dropout_p and device_of(query.device.type).fused_attention
    if not copied or all(_has_rows(t) for t in given):
        result: Tensor = decomp.composed(op, *operands, dropout_p, is_causal, **named)
        return result
    by_rows = [t if t is None or _has_rows(t) else _with_rows(t) for t in operands]
    result = decomp.composed(op, *by_rows, dropout_p, is_causal, **named)
    return result.contiguous()


def _has_rows(tensor: Tensor) -> bool:
    return tensor.dim() == 0 or tensor.shape[-1] == 1 or tensor.stride(-1) == 1


def _with_rows(tensor: Tensor) -> Tensor:
    """A copy that is contiguous, but for what `expand` repeats along other axes than the last."""
    once = tensor
    for dim in range(tensor.dim() - 1):
        if tensor.shape[dim] != 1 and tensor.stride(dim) == 0:
            once = once.narrow(dim, 0, 1)
    return once.contiguous().expand(tensor.shape)
