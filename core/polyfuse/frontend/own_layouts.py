"""Decompositions whose results lie as those of the operators do, where torch's own lie otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["LAID_OUT"]

_CHANNELS_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


def _first(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`result`, or the first of several, changed."""
    if isinstance(result, Tensor):
        return change(result)
    if isinstance(result, tuple | list) and result and isinstance(result[0], Tensor):
        return (change(result[0]), *result[1:])
    return result


def _by_rows(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The operator writes its first result row by row, however its arguments lie."""

    @functools.wraps(decomposition)
    def laid_out(*args: Any, **kwargs: Any) -> Any:
        return _first(decomposition(*args, **kwargs), lambda result: result.contiguous())

    return laid_out


def _by_rows_or_channels(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """On the processor, the first result lies row by row, unless that of the decomposition, which follows the
    argument, has its channels last."""

    def change(result: Tensor) -> Tensor:
        last = _CHANNELS_LAST.get(result.dim())
        if result.device.type != "cpu" or (last is not None and result.is_contiguous(memory_format=last)):
            return result
        return result.contiguous()

    @functools.wraps(decomposition)
    def laid_out(*args: Any, **kwargs: Any) -> Any:
        return _first(decomposition(*args, **kwargs), change)

    return laid_out


def _in_the_format_of_the_first(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The operator keeps channels last where its first argument has them so, and writes row by row else."""

    @functools.wraps(decomposition)
    def laid_out(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = decomposition(x, *args, **kwargs)
        last = _CHANNELS_LAST.get(x.dim())
        if last is None or x.is_contiguous() or not x.is_contiguous(memory_format=last):
            last = torch.contiguous_format
        return result.contiguous(memory_format=last)

    return laid_out


def _as_sums(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The result lies as sums of the arguments do: operators that work element by element share one rule."""

    @functools.wraps(decomposition)
    def laid_out(*args: Any, **kwargs: Any) -> Any:
        result = decomposition(*args, **kwargs)
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        if not isinstance(result, Tensor) or all(t.is_contiguous() for t in tensors):
            return result
        # its strides are looked at, and nobody reads it
        total = functools.reduce(torch.add, tensors)
        if total.shape != result.shape or total.stride() == result.stride():
            return result
        return torch.empty_like(total, dtype=result.dtype).copy_(result)

    return laid_out


LAID_OUT: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = MappingProxyType(
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
            _by_rows_or_channels,
        ),
        **dict.fromkeys(("masked_scatter", "nll_loss2d_forward"), _by_rows),
        **dict.fromkeys(("channel_shuffle", "max_unpool2d"), _in_the_format_of_the_first),
        **dict.fromkeys(("floor_divide", "heaviside", "logaddexp", "native_dropout_backward"), _as_sums),
    }
)
"""What is put around decompositions, by the names of operators."""
