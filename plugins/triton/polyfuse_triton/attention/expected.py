"""What attention of few queries has to give, in f64, and how far off a right kernel may be."""

from __future__ import annotations

from typing import Any, Final

import torch

from polyfuse.plugin import Expected
from polyfuse_triton.attention.problem import FewQueries

_F32: Final = 2.0**-23
_POWER: Final = 2.0**-20
"""Of a weight, for the device's exponential function."""
_TINY: Final = 1e-36


def expected_attention(call: FewQueries, *operands: Any) -> Expected:
    """What a call has to give.

    Args:
        call: what the kernel was written for.
        operands: as the kernel takes them.
    """
    query, key, value, *more = operands
    bias = more.pop(0) if call.bias else None
    at = len(operands) - len(more)
    rows = query.double().unflatten(1, (call.key_heads, call.group))
    k, v = (t.double().unsqueeze(2) for t in (key, value))
    scores = rows @ k.mT * call.scale
    # products are exact in f32, sums and what is done to them are rounded
    size = rows.abs() @ k.abs().mT * abs(call.scale)
    off = size * ((call.depth + 4) * _F32)
    if bias is not None:
        added = bias.double().expand(call.batch, call.heads, call.queries, call.keys)
        scores = scores + added.unflatten(1, (call.key_heads, call.group))
    off = off + 4 * _F32 * scores.abs().nan_to_num(0.0, 0.0, 0.0)
    nothing = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.softmax(-1).masked_fill(nothing, 0.0)
    found = weights @ v
    # the greatest score is subtracted from each: it moves all alike, and cancels
    most = off.amax(-1, keepdim=True)
    eps = torch.finfo(query.dtype).eps
    relative = (off + most).clamp(max=50.0).expm1() + _POWER + eps
    total = (weights * relative).sum(-1, keepdim=True)
    error = (weights * relative + _TINY) @ v.abs() + (total + eps) * found.abs() + _TINY
    unknown = (
        ~(total <= 0.5) | scores.isnan().any(-1, keepdim=True) | (scores == torch.inf).any(-1, keepdim=True)
    )
    error = error.masked_fill(unknown | ~found.isfinite(), torch.inf)
    if query.dtype is torch.float16:
        # weights that are denormal numbers
        error = error + 2.0**-25 * v.abs().sum(-2, keepdim=True)
    results = {at: (found.flatten(1, 2), error.flatten(1, 2))}
    # what programs leave for each other may be anything
    for position, one in enumerate(more[1:], at + 1):
        results[position] = one.double(), torch.full_like(one, torch.inf, dtype=torch.float64)
    return Expected("", (), {}, results)
