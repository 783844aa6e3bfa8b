"""Decompositions whose results lie as those of the operators do, where torch's own lie otherwise, and
margins as reads of what they repeat.
"""

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
from polyfuse.torch_compat.tracing import decomp, shapes

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


def pad_circular(x: Tensor, pad: Sequence[Any]) -> Tensor:
    """A window on three periods of the tensor: one pass, where torch writes the middle, then margins.

    The result is contiguous, as eager mode's is.
    """
    if not _is_within_a_period(x, pad):
        refused: Tensor = decomp.composed(torch.ops.aten._pad_circular.default, x, pad)
        return refused
    window = x
    for d, before, after in _margins(x, pad):
        # a margin below nothing cuts off, before the others repeat what is left
        if before < 0 or after < 0:
            cut = max(-before, 0)
            window = window.narrow(d, cut, x.shape[d] - cut - max(-after, 0))
        left, n, lead = max(before, 0), window.shape[d], window.shape[:d]
        periods = window.unsqueeze(d).expand(*lead, 3, *window.shape[d:])
        row = periods.reshape(*lead, 3 * n, *window.shape[d + 1 :])
        window = row.narrow(d, n - left, n + left + max(after, 0))
    return window.clone(memory_format=torch.contiguous_format)


def _margins(x: Tensor, pad: Sequence[Any]) -> list[tuple[int, Any, Any]]:
    """Each padded dimension with its margins before and after, outermost first."""
    first, last = x.dim() - len(pad) // 2, x.dim() - 1
    return [(d, pad[2 * (last - d)], pad[2 * (last - d) + 1]) for d in range(first, x.dim())]


def _is_within_a_period(x: Tensor, pad: Sequence[Any]) -> bool:
    """Whether no margin repeats more than all that is left, and all sizes are known before the program
    runs.
    """
    if shapes.is_unbacked(x) or len(pad) % 2 or len(pad) // 2 > x.dim():
        return False
    for d, before, after in _margins(x, pad):
        left = x.shape[d] + min(before, 0) + min(after, 0)
        if left <= 0 or before > left or after > left:
            return False
    return True


def edge_pad(x: Tensor, pad: Sequence[Any], *, rank: int, margin: str) -> Any:
    """A margin that mirrors or repeats the edge, its channels last where the tensor's are, as eager mode has
    it on the CPU; for releases of torch that say of the result that they are second.
    """
    if decomp.margins_keep_layout() or not device_of(x.device.type).is_host or not _has_channels_last(x):
        return NotImplemented
    # one that lies row by row is left whole
    result = getattr(torch.ops.aten, f"{margin}_pad{rank}d").default(x.contiguous(), pad)
    return result.contiguous(memory_format=CHANNELS_LAST[rank + 2])


def edge_pad_backward(grad: Tensor, x: Tensor, pad: Sequence[Any], *, rank: int, margin: str) -> Any:
    """The gradient of a margin that mirrors or repeats the edge, its channels last where the tensor's are: so
    eager mode's is on the CPU, where torch says of it that they are second.
    """
    if not device_of(x.device.type).is_host or not _has_channels_last(x):
        return NotImplemented
    # of the tensor, the gradient takes its size alone
    operator = getattr(torch.ops.aten, f"{margin}_pad{rank}d_backward").default
    result = operator(grad, x.new_empty(x.shape), pad)
    return result.contiguous(memory_format=CHANNELS_LAST[rank + 2])


def _has_channels_last(x: Tensor) -> bool:
    """Whether the strides say so, of sizes that are known before the program runs."""
    return not shapes.is_unbacked(x) and has_channels_last(x)
