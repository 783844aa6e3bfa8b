"""Comparison of a backend's result with the truth."""

from __future__ import annotations

import torch
from torch import Tensor

from polyfuse.testing.cases.case import Tolerance

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def difference(
    found: Tensor,
    wanted: tuple[Tensor, ...],
    tolerance: Tolerance,
    valid: Tensor | None = None,
    slack: Tensor | None = None,
) -> str:
    """How `found` differs from all of the `wanted` answers, in words; empty where it agrees with one at each
    element."""
    good = torch.zeros(found.shape, dtype=torch.bool)
    for answer in wanted:
        good |= _close(found, answer, tolerance, slack)
    if valid is not None:
        good |= ~valid.reshape(good.shape)
    if bool(good.all()):
        return ""
    bad = (~good).reshape(-1).nonzero().reshape(-1)
    at = int(bad[0])
    first = [_shown(t.reshape(-1)[at : at + 1]) for t in (found, *wanted[:1])]
    return f"{len(bad)} of {good.numel()} elements differ; element {at} is {first[0]}, not {first[1]}"


def _close(found: Tensor, wanted: Tensor, tolerance: Tolerance, slack: Tensor | None) -> Tensor:
    if not found.dtype.is_floating_point:
        twin = _SIGNED.get(found.dtype)
        return found == wanted if twin is None else found.view(twin) == wanted.view(twin)
    if found.element_size() == 1:
        found, wanted = found.float(), wanted.float()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    if tolerance.signed_zero:
        same &= (found.signbit() == wanted.signbit()) | (found != 0) | found.isnan()
    allowed = torch.full(found.shape, tolerance.absolute, dtype=torch.float64)
    size = wanted.double().abs()
    allowed = allowed + tolerance.relative * size.nan_to_num(posinf=0.0)
    if tolerance.ulp:
        allowed = allowed + tolerance.ulp * _spacing(wanted)
    if slack is not None:
        allowed = allowed + slack.double().nan_to_num(nan=0.0, posinf=0.0).reshape(found.shape)
    distance = (found.double() - wanted.double()).abs()
    return same | (distance <= allowed) & (distance > 0)


def _spacing(value: Tensor) -> Tensor:
    """The distance between neighbouring numbers around each value."""
    info = torch.finfo(value.dtype)
    size = value.double().abs().clamp(min=info.tiny, max=info.max).nan_to_num(nan=0.0)
    return torch.exp2(size.log2().floor()) * info.eps


def _shown(value: Tensor) -> str:
    if value.dtype.is_floating_point and value.element_size() <= 2:
        return str(value.float().item())
    return str(value.item() if value.dtype not in _SIGNED else value.numpy().item())
