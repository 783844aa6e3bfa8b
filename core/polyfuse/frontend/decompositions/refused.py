"""Calls that eager mode refuses for shapes, numbers or mixed types, which a decomposition would compute.

The operator then stays whole, and raises what eager mode raises, when it runs. Two losses are not refused,
but have another type in eager mode than their decompositions. What is refused for one type alone stands in
`torch_compat.refusals`. One call too many in here costs speed, and is never wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from polyfuse.torch_compat.tracing import shapes

_HALF = (torch.float16, torch.bfloat16)


def _other_rows(x: Tensor, dim: int, index: Tensor, source: Tensor, *_: Any, **__: Any) -> bool:
    """Whether `source` has not one row for each index, of the type and sizes of those of `x`."""
    if x.dtype != source.dtype or x.dim() != source.dim() or index.dim() > 1:
        return True
    if x.dim() == 0 and dim not in (0, -1):
        return True
    if any(shapes.is_unbacked(t) for t in (x, index, source)):
        return False
    if x.dim() and any(x.shape[d] != source.shape[d] for d in range(x.dim()) if d != dim % x.dim()):
        return True
    return bool(index.numel() != (source.shape[dim] if source.dim() else 1))


def _mixed(*args: Any, **_: Any) -> bool:
    return len({a.dtype for a in args if isinstance(a, Tensor)}) > 1


def _mixed_norm(x: Tensor, *rest: Any, **_: Any) -> bool:
    """Weights, biases and statistics have the input's type, or all float32 beside one of 16 bits."""
    others = {a.dtype for a in rest if isinstance(a, Tensor)}
    return bool(others) and others != {x.dtype} and not (x.dtype in _HALF and others == {torch.float32})


def _no_channels(x: Tensor, *rest: Any, **named: Any) -> bool:
    """Whether types are mixed so, or weights, biases and statistics are no vectors of channels of `x`."""
    vectors = [a for a in rest if isinstance(a, Tensor)]
    channels = list(x.shape[1:2])
    return _mixed_norm(x, *rest, **named) or any(_differ(channels, v.shape) for v in vectors)


def _other_classes(x: Tensor, target: Tensor, weight: Tensor | None, *_: Any) -> bool:
    """Whether weights have another type than scores, or are not one for each class."""
    if weight is None:
        return False
    return weight.dtype != x.dtype or _differ(list(x.shape)[:2][-1:], weight.shape)


def _negative_padding(
    x: Tensor, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], *_: Any
) -> bool:
    return min(padding) < 0


def _differ(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether shapes have other ranks, or other sizes that are known."""
    if len(shape) != len(other):
        return True
    known = ((n, m) for n, m in zip(shape, other, strict=True) if isinstance(n, int) and isinstance(m, int))
    return any(n != m for n, m in known)


def _no_slice_of(x: Tensor, source: Tensor, dim: int, index: Any) -> bool:
    """Whether `source` has not the shape of `x` without `dim`, or `index` is out of range, if known."""
    at = dim % x.dim()
    count = x.shape[at]
    outside = isinstance(index, int) and isinstance(count, int) and not -count <= index < count
    return outside or _differ([*x.shape[:at], *x.shape[at + 1 :]], source.shape)


def _no_range_of(
    x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> bool:
    """Whether `source` has not the shape of that slice of `x`, if known."""
    shape = list(x.shape)
    at = dim % max(x.dim(), 1)
    if source.dim() != x.dim() or not shape:
        return True
    if all(n is None or isinstance(n, int) for n in (shape[at], start, end, step)):
        shape[at] = len(range(shape[at])[start:end:step])
    else:
        shape[at] = source.shape[at]
    return _differ(shape, source.shape)


def _no_diagonal_of(x: Tensor, source: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> bool:
    """Whether `source` has not the shape of that diagonal of `x`, if known."""
    row, column = dim1 % x.dim(), dim2 % x.dim()
    length: Any = source.shape[-1] if source.dim() else 1
    if isinstance(x.shape[row], int) and isinstance(x.shape[column], int):
        length = max(min(x.shape[row] + min(offset, 0), x.shape[column] - max(offset, 0)), 0)
    rest = [n for d, n in enumerate(x.shape) if d not in (row, column)]
    return _differ([*rest, length], source.shape)


def _other_count(x: Tensor, index: Tensor, source: Tensor, *_: Any, **__: Any) -> bool:
    return x.dtype != source.dtype or _differ([index.numel()], [source.numel()])


def _scaled_by_fraction(x: Tensor, *rest: Any, value: Any = 1) -> bool:
    """Whether integers have a floating-point factor: eager mode accepts one that is whole."""
    return isinstance(value, float) and not any(a.dtype.is_floating_point for a in (x, *rest))


def _counts(*_: Any, dtype: torch.dtype | None = None, **__: Any) -> bool:
    """Whether the results are integers, of which 32 bits of a float hold too few."""
    return dtype is not None and not (dtype.is_floating_point or dtype.is_complex)


REFUSES: Final[Mapping[str, Callable[..., bool]]] = {
    **dict.fromkeys(("index_add", "index_reduce"), _other_rows),
    "index_copy": lambda x, dim, index, source: x.dtype != source.dtype,
    "put": _other_count,
    "masked_scatter": lambda x, mask, *_: mask.dtype != torch.bool,
    "select_scatter": _no_slice_of,
    "slice_scatter": _no_range_of,
    "diagonal_scatter": _no_diagonal_of,
    "im2col": _negative_padding,
    "addcmul": _scaled_by_fraction,
    **dict.fromkeys(("linspace", "logspace"), _counts),
    "mvlgamma": lambda x, p: p < 1,
    **dict.fromkeys(("addbmm", "addmv", "dot", "linalg_cross", "mv", "vdot"), _mixed),
    **dict.fromkeys(("_prelu_kernel", "binary_cross_entropy", "huber_loss", "soft_margin_loss"), _mixed),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _other_classes),
    "native_layer_norm": _mixed_norm,
    **dict.fromkeys(
        (
            "native_group_norm",
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional",
            "_native_batch_norm_legit_no_training",
        ),
        _no_channels,
    ),
}
"""By an operator's name without its overload: whether eager mode refuses its arguments."""
