"""Decompositions whose results lie as those of the operators do, where torch's own lie otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from polyfuse.frontend.decompositions.operators import like_layout
from polyfuse.frontend.graph import CHANNELS_LAST
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import contiguous_strides
from polyfuse.torch_compat.tracing import shapes

Relaid: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""From a decomposition to one whose results lie otherwise."""


def _relaid(change: Callable[[Tensor, Sequence[Any]], Tensor]) -> Relaid:
    """Change the first result of a decomposition; `change` gets it and the arguments."""

    def around(decomposition: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(decomposition)
        def laid_out(*args: Any, **kwargs: Any) -> Any:
            result, given = decomposition(*args, **kwargs), (*args, *kwargs.values())
            if isinstance(result, Tensor):
                return change(result, given)
            if isinstance(result, tuple | list) and result and isinstance(result[0], Tensor):
                return (change(result[0], given), *result[1:])
            return result

        return laid_out

    return around


def _by_rows(result: Tensor, given: Sequence[Any]) -> Tensor:
    """The operator writes its first result row by row, however its arguments lie."""
    return result.contiguous()


def _by_rows_or_channels(result: Tensor, given: Sequence[Any]) -> Tensor:
    """On the CPU, the first result lies row by row, unless that of the decomposition, which follows the
    argument, has its channels last."""
    if shapes.is_unbacked(result) or not device_of(result.device.type).is_host or has_channels_last(result):
        return result
    return result.contiguous()


def _in_the_format_of_the_first(result: Tensor, given: Sequence[Any]) -> Tensor:
    """The operator keeps channels last where its first argument has them so, and writes row by row else."""
    x = given[0]
    if shapes.is_unbacked(x):
        return result
    last = CHANNELS_LAST[x.dim()] if has_channels_last(x) else torch.contiguous_format
    return result.contiguous(memory_format=last)


def _as_noise(result: Tensor, given: Sequence[Any]) -> Tensor:
    """In training the gradient of the randomised ReLU lies as its noise and its result do, which are written
    row by row; torch traces the result with its argument's strides, and so the gradient that comes in."""
    lower, upper, training = given[3:6]
    return result.contiguous() if training and upper > lower else result


def _as_sums(result: Tensor, given: Sequence[Any]) -> Tensor:
    """The result lies as the sum of one or two tensors does: operators that work element by element share one
    rule."""
    tensors = [a for a in given if isinstance(a, Tensor)]
    # where data decide a size, nobody can say how things lie before the program runs
    if any(map(shapes.is_unbacked, tensors)) or all(t.is_contiguous() for t in tensors):
        return result
    # its strides are looked at, and nobody reads it
    total = tensors[0] + (tensors[1] if len(tensors) == 2 else 0)
    return like_layout(result, total)


def of_rows(name: str) -> Callable[..., Any]:
    """An operator that writes row by row, however the tensors lie that it reads; torch says that it keeps
    strides."""
    op = getattr(torch.ops.aten, name)

    def laid_out(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in args if isinstance(a, Tensor)]
        if any(map(shapes.is_unbacked, tensors)) or all(t.is_contiguous() for t in tensors):
            return NotImplemented
        return op(*(a.contiguous() if isinstance(a, Tensor) else a for a in args), **kwargs)

    return laid_out


def angle(x: Tensor) -> Any:
    """Angles of complex numbers lie row by row, however those lie: a kernel reads both parts and writes them
    so."""
    if not x.is_complex() or shapes.is_unbacked(x) or x.is_contiguous():
        return NotImplemented
    if x.is_conj():
        return torch.angle(x.contiguous())
    parts = torch.view_as_real(x)
    return torch.atan2(parts[..., 1], parts[..., 0]).contiguous()


def has_channels_last(x: Tensor) -> bool:
    """Whether the strides say so, also those of dimensions of size one, which could say anything."""
    if x.dim() not in CHANNELS_LAST or x.is_contiguous():
        return False
    batch, channels, *rest = x.shape
    wanted = contiguous_strides((batch, *rest, channels))
    return tuple(x.stride()) == (wanted[0], wanted[-1], *wanted[1:-1])


LAID_OUT: Final[Mapping[str, Relaid]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "native_batch_norm",
                "_native_batch_norm_legit",
                "_native_batch_norm_legit_functional",
                "_native_batch_norm_legit_no_training",
                "_batch_norm_with_update",
                "_batch_norm_with_update_functional",
                "_batch_norm_no_update",
            ),
            _relaid(_by_rows_or_channels),
        ),
        **dict.fromkeys(("masked_scatter", "nll_loss2d_forward"), _relaid(_by_rows)),
        "rrelu_with_noise_backward": _relaid(_as_noise),
        "channel_shuffle": _relaid(_in_the_format_of_the_first),
        **dict.fromkeys(
            ("floor_divide", "heaviside", "logaddexp", "native_dropout_backward"), _relaid(_as_sums)
        ),
    }
)
"""What is put around decompositions, by the names of operators."""
