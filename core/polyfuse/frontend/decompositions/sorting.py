"""Sorting without a library: comparisons of all pairs of short runs, which are then merged.

A number's position among others is how many of them are before it. Counted over all pairs of a run, that is a
reduction; counted by a binary search in the run beside it, it merges two sorted runs. Both are loops that any
backend generates, and all numbers are counted at once.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.runtime.devices.registry import device_of

_WHOLE: Final = 1024
"""Longest row whose pairs are all compared."""
_RUN: Final = 512
"""Numbers of a run of longer rows, a power of two."""
_NARROW: Final = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)
_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32)


def sort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    """`aten.sort`, always in a stable way, where a library is not there: on devices other than the host."""
    return _ordered(x, dim, descending, None)


def sort_stable(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """The overload that takes its arguments by name."""
    return _ordered(x, dim, descending, None)


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """`aten.topk`, always in order; of equal numbers the first."""
    return _ordered(x, dim, largest, k)


def _ordered(x: Tensor, dim: int, descending: bool, k: int | None) -> Any:
    if device_of(x.device.type).is_host or x.dtype not in (*_NARROW, *_FLOATS, torch.int64, torch.float64):
        return NotImplemented
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    ranks = _ranks(x, descending).transpose(dim, -1)
    length = ranks.shape[-1]
    if isinstance(length, int) and length > _WHOLE:
        if k is not None and 0 < k <= _RUN // 2:
            positions = _first(ranks, k)
        else:
            positions = _merged(ranks)
    else:
        positions = _sorted_rows(ranks, _numbers(length, x.device))[1]
    if k is not None:
        positions = positions[..., :k]
    positions = positions.to(torch.int64).transpose(dim, -1).contiguous()
    return x.gather(dim, positions), positions


def _ranks(x: Tensor, descending: bool) -> Tensor:
    """Integers in the order that sorting wants, of 32 or 64 bits: NaN are equal and the largest, zeros of
    either sign are equal.
    """
    if x.dtype in _NARROW:
        ranks = x.to(torch.int32)
    elif x.dtype is torch.int64:
        ranks = x
    else:
        wide, infinity = (torch.int64, 0x7FF << 52) if x.dtype is torch.float64 else (torch.int32, 0xFF << 23)
        bits = (x if x.dtype is torch.float64 else x.to(torch.float32)).view(wide)
        most = torch.iinfo(wide).max
        magnitude = bits & most
        ranks = torch.where(bits < 0, -magnitude, magnitude)
        ranks = torch.where(magnitude > infinity, most, ranks)
    return ~ranks if descending else ranks


def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=device)


def _sorted_rows(ranks: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Each row in order with `positions` of the same shape: equal ranks stay as they are."""
    number = _numbers(ranks.shape[-1], ranks.device)
    own, others = ranks.unsqueeze(-1), ranks.unsqueeze(-2)
    earlier = number.unsqueeze(0) < number.unsqueeze(1)
    before = torch.where(earlier, others <= own, others < own)
    target = before.to(torch.int32).sum(-1)
    return _put(ranks, target), _put(positions.expand_as(ranks), target)


def _put(values: Tensor, target: Tensor) -> Tensor:
    """A row whose positions `target` hold `values`."""
    return torch.empty_like(values, memory_format=torch.contiguous_format).scatter(-1, target, values)


def _in_runs(ranks: Tensor, positions: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Rows cut into `count` runs; what a row lacks is last, whatever its rank."""
    lacking = count * _RUN - ranks.shape[-1]
    most = torch.iinfo(ranks.dtype).max
    ranks = torch.constant_pad_nd(ranks, [0, lacking], most)
    positions = torch.constant_pad_nd(
        positions.expand(*ranks.shape[:-1], positions.shape[-1]), [0, lacking], 0
    )
    return ranks.unflatten(-1, (count, _RUN)), positions.unflatten(-1, (count, _RUN))


def _first(ranks: Tensor, wanted: int) -> Tensor:
    """Positions of the `wanted` first, of which each run keeps as many, until there is one run."""
    positions = _numbers(ranks.shape[-1], ranks.device)
    while True:
        count = -(-ranks.shape[-1] // _RUN)
        ranks, positions = _sorted_rows(*_in_runs(ranks, positions, count))
        if count == 1:
            return positions.squeeze(-2)
        ranks, positions = (t[..., :wanted].flatten(-2) for t in (ranks, positions))


def _merged(ranks: Tensor) -> Tensor:
    """Positions in the order of whole rows: runs are sorted, then two and two merged."""
    length = ranks.shape[-1]
    count = 1 << (-(-length // _RUN) - 1).bit_length()
    ranks, positions = _sorted_rows(*_in_runs(ranks, _numbers(length, ranks.device), count))
    while count > 1:
        count //= 2
        pairs = ranks.unflatten(-2, (count, 2))
        left, right = pairs.select(-2, 0).contiguous(), pairs.select(-2, 1).contiguous()
        # of equal ranks those on the left come first
        behind = torch.stack(
            (torch.searchsorted(right, left), torch.searchsorted(left, right, right=True)), -2
        )
        target = (behind + _numbers(ranks.shape[-1], ranks.device)).flatten(-2)
        ranks = _put(pairs.flatten(-2), target)
        positions = _put(positions.unflatten(-2, (count, 2)).flatten(-2), target)
    return positions.squeeze(-2)[..., :length]
