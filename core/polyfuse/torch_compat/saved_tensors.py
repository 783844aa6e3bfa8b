"""What hooks of saved tensors return to compiled backwards (`torch.autograd.graph.saved_tensors_hooks`).

Kernels of a backward read memory as it lay when the forward saved it. A hook may return the same numbers in
other strides, at an address that is less aligned, in another type, or as a negated or conjugated view.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, NamedTuple

import torch

_ALIGNMENT = 64
"""Bytes; what a forward allocates begins at a multiple of it."""
_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class _Look(NamedTuple):
    """How a tensor lay that was given to a hook."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    conjugated: bool
    negated: bool
    aligned: bool


def watch_hooks(function: type[torch.autograd.Function]) -> None:
    """Have an `autograd.Function` read what it saved as it lay then, whatever hooks return for it."""
    forward: Any = function.forward

    @wraps(forward)
    def noting(ctx: Any, *inputs: Any) -> Any:
        results = forward(ctx, *inputs)
        if _hooks(True) is not None:
            ctx.looks = [_look(x) if _is_plain(x) else None for x in ctx.to_save or ()]
        return results

    def saved(ctx: Any) -> tuple[torch.Tensor, ...]:
        found = given(ctx)
        looks = getattr(ctx, "looks", None)
        return found if looks is None else tuple(map(_as_saved, found, looks))

    both: Any = function
    given = torch._C._FunctionBase.saved_tensors.__get__
    both.forward = staticmethod(noting)
    both._backward_cls.saved_tensors = property(saved)


def _look(x: torch.Tensor) -> _Look:
    marks = x.is_conj(), x.is_neg()
    return _Look(x.size(), x.stride(), x.dtype, x.device, *marks, x.data_ptr() % _ALIGNMENT == 0)


def _as_saved(x: torch.Tensor, look: _Look | None) -> torch.Tensor:
    """What a hook returned, copied where it lies otherwise than what was saved."""
    if look is None or not _is_plain(x):
        return x
    found = _look(x)
    if found.size != look.size:
        raise RuntimeError(
            f"a hook of saved tensors returned a tensor of size {tuple(found.size)} for one of"
            f" {tuple(look.size)}: return one of the same size"
        )
    if found[:-1] == look[:-1] and found.aligned >= look.aligned:
        return x
    made = torch.empty_strided(look.size, look.stride, dtype=look.dtype, device=look.device)
    made = made.conj() if look.conjugated else made
    made = torch._neg_view(made) if look.negated else made
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in look.stride)
    made[once].copy_(x.detach()[once])
    return made


def _is_plain(x: Any) -> bool:
    return type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
