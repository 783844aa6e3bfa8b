"""What a call of attention computes, in f64, and how far off a right kernel may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.plugin import Expected

STRIDED: Final = ("query", "key", "value", "mask", "result", "logs")
"""Tensors of a call, of each of which the kernel takes the strides of images, heads and rows."""
MORE: Final = ("scale_bits", "is_causal", "has_logs")
"""The last operands of a call."""
_OPERATOR: Final = "aten._scaled_dot_product_flash_attention_for_cpu.default"
_BLOCK, _BUDGET = 1 << 20, 1 << 25
"""Scores that are computed together, and at most: of a larger call, blocks of queries from everywhere."""
_BF16, _F32 = 2.0**-8, 2.0**-23
_POWER = {torch.bfloat16: 2.0**-12, torch.float32: 2.0**-20}
"""Of a weight, for what is left out of its exponential function, and where a greatest score is rounded."""
_TINY = 1e-36
"""Denormal numbers count as zero."""
_LARGE = 1e37
"""Scores beyond which f32 may hold none."""


class Form(IntEnum):
    """How scores become logarithms of weights; numbers as in ``prelude/attention.h``."""

    PLAIN = 0
    """Times a positive factor."""
    SCALED = 1
    """Times any factor."""
    ADDED = 2
    """With an f32 mask added."""
    ADDED_BF16 = 3
    """With a bf16 mask added."""


def expected_attention(form: Form, operands: Sequence[Any]) -> Expected:
    """What a call of the kernel has to give.

    Args:
        form: of the kernel.
        operands: as `AttentionKernel` takes them.
    """
    query, key, value, mask, result = operands[: len(STRIDED) - 1]
    bits, causal, has_logs = operands[-len(MORE) :]
    scale = torch.tensor(bits, dtype=torch.int32).view(torch.float32).item()
    added = mask if form >= Form.ADDED else None
    wanted = torch.zeros(result.shape, dtype=torch.float64)
    errors = torch.full(result.shape, torch.inf, dtype=torch.float64)
    sums, sum_errors = wanted[..., 0].clone(), errors[..., 0].clone()
    shared = query.shape[1] // max(1, key.shape[1])
    for image, head, rows in _blocks(query.shape[0], query.shape[1], query.shape[2], key.shape[2]):
        at = image, head, rows
        one = query[at].double(), key[image, head // shared].double(), value[image, head // shared].double()
        seen = None if added is None else added.expand(*query.shape[:3], key.shape[2])[at].double()
        first = rows.start if causal else -1
        wanted[at], errors[at], sums[at], sum_errors[at] = _rows(*one, seen, scale, first, query.dtype)
    results = {4: (wanted, errors)}
    if has_logs:
        results[5] = (sums, sum_errors)
    kwargs = {"attn_mask": added, "scale": scale}
    return Expected(_OPERATOR, (query, key, value, 0.0, bool(causal)), kwargs, results)


def _blocks(images: int, heads: int, queries: int, keys: int) -> Iterator[tuple[int, int, slice]]:
    """Images, heads and blocks of queries that are looked at."""
    rows = min(queries, max(1, _BLOCK // max(1, keys)))
    blocks = -(-queries // rows)
    total = images * heads * blocks
    count = min(total, max(2, _BUDGET // max(1, rows * keys)))
    for number in dict.fromkeys(k * (total - 1) // max(1, count - 1) for k in range(count)):
        pair, block = divmod(number, blocks)
        yield pair // heads, pair % heads, slice(block * rows, min(queries, (block + 1) * rows))


def _rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    first: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Results of some queries of one head, how far each may be off, and both of logarithms of sums.

    Args:
        query: (queries, width)
        key, value: (keys, width)
        mask: (queries, keys)
        first: number of the first query, which sees no key behind its own; -1: each sees all.
        dtype: of what is read, of weights and of the result.
    """
    scores = query @ key.mT * scale
    # products are exact in f32, sums and what is done to them are rounded
    size = query.abs() @ key.abs().mT * abs(scale)
    off = size * ((query.shape[-1] + 4) * _F32) + _TINY * abs(scale) * (
        query.abs().sum(-1, keepdim=True) + key.abs().sum(-1)
    )
    if mask is not None:
        scores = scores + mask
        off = off + _F32 * mask.abs().nan_to_num(0.0, 0.0, 0.0)
    off = off + 4 * _F32 * scores.abs().nan_to_num(0.0, 0.0, 0.0)
    if first >= 0:
        hidden = torch.arange(key.shape[0]) > torch.arange(first, first + query.shape[0]).unsqueeze(1)
        scores, off = scores.masked_fill(hidden, -torch.inf), off.masked_fill(hidden, 0.0)
    nothing = (scores == -torch.inf).all(-1)
    if not key.shape[0]:
        zero = query.new_zeros(query.shape)
        return zero, zero, zero[:, 0], zero[:, 0]
    weights = scores.softmax(-1).masked_fill(nothing.unsqueeze(1), 0.0)
    found = weights @ value
    # the greatest score is subtracted from each: it moves all alike, and cancels
    most = off.amax(-1, keepdim=True)
    rounded = _BF16 if dtype == torch.bfloat16 else (key.shape[0] + 8) * _F32
    relative = (off + most).clamp(max=50.0).expm1() + _POWER[dtype] + rounded
    total = (weights * relative).sum(-1, keepdim=True)
    error = (weights * relative + _TINY) @ value.abs() + (total + rounded) * found.abs() + _TINY
    # what does not fit into f32 on the way becomes infinity, or no number
    unknown = (scores.abs().masked_fill(scores == -torch.inf, 0.0) > _LARGE).any(-1) | (size > _LARGE).any(-1)
    unknown |= total.squeeze(-1) > 0.5
    error = error.masked_fill(unknown.unsqueeze(1) | ~found.isfinite() & ~found.isnan(), torch.inf)
    error = error.masked_fill(found.abs() > _LARGE, torch.inf).nan_to_num(torch.inf)
    # a score that is no number makes its row one; whether others are reached is not looked at
    error = error.masked_fill(scores.isnan().any(-1, keepdim=True), 0.0)
    sums = scores.logsumexp(-1).masked_fill(nothing, 0.0)
    sum_error = most.squeeze(-1) + total.squeeze(-1) + 8 * _F32 * (sums.abs() + 1)
    return found, error, sums, sum_error.masked_fill(unknown | ~sums.isfinite(), torch.inf)
