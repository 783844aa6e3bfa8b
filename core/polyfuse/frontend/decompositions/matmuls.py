"""Matmuls that add up nothing, and attention whose operands lie as no fused kernel of the library takes them.

With a depth of one, each element of a matmul's result is one product. A library packs operands and calls a
kernel made for sums; as a pointwise multiplication the matmul is as fast as its result is written, and fuses
with its neighbours. The gradient of a weight is such a matmul at batch 1, and so is what a layer with one
output passes back.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import decomp, shapes

_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def matmul(left: Tensor, right: Tensor) -> Any:
    """`mm` or `bmm` with a depth of one: each product, rounded once."""
    if not _adds_nothing(left, right):
        return NotImplemented
    products = left * right
    return (products if _is_library_matmul(left, right) else products + 0.0).contiguous()


def addmm(term: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """`addmm` or `baddbmm` with a depth of one. What is added counts for nothing with a factor of zero, and
    neither does a product that eager mode leaves to BLAS."""
    if not _adds_nothing(left, right) or term.dtype != left.dtype:
        return NotImplemented
    if alpha == 0 and left.dim() == 2 and left.element_size() > 2:
        return _term_alone(term, left.new_empty((left.shape[0], right.shape[1])), beta)
    wide = torch.float32 if left.element_size() == 2 else left.dtype
    value = left.to(wide) * right.to(wide)
    if alpha != 1:
        value = value * alpha
    if left.dim() == 3 or left.dtype is not wide:
        value = value + 0.0
    if beta != 0:
        value = value + (term.to(wide) if beta == 1 else term.to(wide) * beta)
    return value.to(left.dtype).contiguous()


def addmv(term: Tensor, matrix: Tensor, vector: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """`addmv` with a depth of one: a negative zero stays one where eager mode adds to the term itself. With a
    factor of zero, of any depth: BLAS does not read the matrix, so that infinities do not become NaN."""
    if matrix.dim() != 2 or vector.dim() != 1:
        return NotImplemented
    if alpha == 0 and term.dtype == matrix.dtype == vector.dtype and matrix.dtype in _TYPES[2:]:
        return _term_alone(term, matrix.new_empty(matrix.shape[:1]), beta)
    column = vector.unsqueeze(1)
    if not _adds_nothing(matrix, column) or term.dim() != 1:
        return NotImplemented
    found = addmm(term.unsqueeze(1), matrix, column, beta=beta, alpha=alpha)
    if found is NotImplemented:
        return found
    return (found + 0.0 if beta == 0 else found).squeeze(1)


def _term_alone(term: Tensor, result: Tensor, beta: float) -> Tensor:
    """What is left of a sum with a product whose factor is zero, with the sizes of the result."""
    alone = term.expand(result.shape)
    scaled = torch.zeros_like(result) if beta == 0 else alone * beta if beta != 1 else alone.clone()
    return scaled.contiguous()


def _is_library_matmul(left: Tensor, right: Tensor) -> bool:
    """Whether eager mode stores the products as they are, negative zeros too: matrices that it gives to BLAS.
    Everywhere else they are added to a zero, as terms of a sum.
    """
    rows, columns = left.shape[0], right.shape[-1]
    vector = any(isinstance(n, int) and n == 1 for n in (rows, columns))
    return left.dim() == 2 and left.element_size() > 2 and not vector


def _adds_nothing(left: Tensor, right: Tensor) -> bool:
    """Whether these are matrices or batches of them that eager mode multiplies, with a depth of one."""
    if left.dtype != right.dtype or left.dtype not in _TYPES or left.device != right.device:
        return False
    if left.dim() != right.dim() or left.dim() < 2:
        return False
    depths = left.shape[-1], right.shape[-2]
    if not all(isinstance(n, int) and n == 1 for n in depths):
        return False
    return left.dim() == 2 or bool(left.shape[0] == right.shape[0])


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Tensor:
    """Copy what is not contiguous along its last axis, and repeat heads that broadcast, where the library
    would compute attention by matmuls for that reason alone (`Device.fused_attention`): a relative position's
    bias is such a mask, and one head of keys for all heads of queries is such a head.

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
    outer = None if not copied or named.get("enable_gqa") else _outer_sizes(query, key, value)
    if not copied or (outer is None and all(_has_rows(t) for t in given)):
        result: Tensor = decomp.composed(op, *operands, dropout_p, is_causal, **named)
        return result
    by_rows = [t if t is None or _has_rows(t) else _with_rows(t) for t in operands]
    if outer is not None:
        by_rows = [*(t.expand(*outer, *t.shape[-2:]) for t in by_rows[:3] if t is not None), by_rows[3]]
    result = decomp.composed(op, *by_rows, dropout_p, is_causal, **named)
    return result.contiguous()


def _outer_sizes(*operands: Tensor) -> list[Any] | None:
    """Images and heads of what broadcasts; None: all have as many, or as many as cannot broadcast."""
    if any(t.dim() != 4 for t in operands):
        return None
    repeated, sizes = False, list[Any]()
    for found in zip(*(shapes.exprs_of(t.shape[:2]) for t in operands), strict=True):
        several = [k for k, n in enumerate(found) if n != 1]
        if any(found[k] != found[several[0]] for k in several):
            return None
        repeated |= 0 < len(several) < len(found)
        sizes.append(operands[several[0] if several else 0].shape[len(sizes)])
    return sizes if repeated else None


def _has_rows(tensor: Tensor) -> bool:
    return tensor.dim() == 0 or tensor.shape[-1] == 1 or tensor.stride(-1) == 1


def _with_rows(tensor: Tensor) -> Tensor:
    """A copy that is contiguous, but for what `expand` repeats along other axes than the last."""
    once = tensor
    for dim in range(tensor.dim() - 1):
        if tensor.shape[dim] != 1 and tensor.stride(dim) == 0:
            once = once.narrow(dim, 0, 1)
    return once.contiguous().expand(tensor.shape)
