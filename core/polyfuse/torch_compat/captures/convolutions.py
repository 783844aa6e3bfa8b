"""Convolutions of inputs whose sizes vary, traced without guards on these sizes.

To know the memory format of a result, fake tensors ask which of eager mode's convolutions would run. That one
is chosen by sizes, each comparison of which becomes a guard: with torch's own answer, batches below and from
16 on are two graphs, and so are images of one batch below and above 20480 numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from polyfuse.torch_compat.tracing.shapes import hint, is_symbolic

_MOST_DIMS = 4
"""Of one and two dimensions the candidates give the same memory format; of three they do not."""

_OPERANDS = ("input", "weight")


def chosen_by_hints(choose: Callable[..., Any]) -> Callable[..., Any]:
    """`torch._C._select_conv_backend`, answering on CPUs for the sizes of the examples alone.

    Args:
        choose: torch's own function, of an input, a weight and the options of a convolution.
    """

    # the first two arguments are positional, or with torch 2.11 named as torch names them
    def chosen(*args: Any, **named: Any) -> Any:
        given = dict(zip(_OPERANDS, args, strict=False)) | named
        data, weight = (given.pop(name) for name in _OPERANDS)
        if data.device.type == "cpu" and data.ndim <= _MOST_DIMS:
            data, weight = _of_hints(data), _of_hints(weight)
        return choose(data, weight, *args[len(_OPERANDS) :], **given)

    return chosen


def _of_hints(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout without symbols."""
    if not any(is_symbolic(n) for n in (*value.shape, *value.stride())):
        return value
    size, stride = ([_number(n) for n in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)


def _number(value: Any) -> int:
    return int(hint(value.node.shape_env, value)) if is_symbolic(value) else value
