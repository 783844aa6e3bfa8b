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

__all__ = ["REFUSES"]

_HALF = (torch.float16, torch.bfloat16)


def _other_rows(x: Tensor, dim: int, index: Tensor, source: Tensor, *_: Any, **__: Any) -> bool:
    """Whether `source` is no row for each index: the sizes of its other dimensions are not those of `x`."""
    if x.dim() != source.dim() or index.dim() > 1:
        return True
    if any(shapes.is_unbacked(t) for t in (x, index, source)):
        return False
    if x.dim() and any(x.shape[d] != source.shape[d] for d in range(x.dim()) if d != dim % x.dim()):
        return True
    return bool(index.numel() != (source.shape[dim] if source.dim() else 1))


def _last(arguments: Sequence[Any]) -> Tensor:
    """The last tensor of the arguments."""
    tensors: list[Tensor] = [a for a in arguments if isinstance(a, Tensor)]
    return tensors[-1]


def _mixed(*args: Any, **_: Any) -> bool:
    return len({a.dtype for a in args if isinstance(a, Tensor)}) > 1


def _mixed_norm(x: Tensor, *rest: Any, **_: Any) -> bool:
    """Weights, biases and statistics have the input's type, or all float32 beside one of 16 bits."""
    others = {a.dtype for a in rest if isinstance(a, Tensor)}
    return bool(others) and others != {x.dtype} and not (x.dtype in _HALF and others == {torch.float32})


def _negative_padding(
    x: Tensor, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], *_: Any
) -> bool:
    return min(padding) < 0


def _no_slice_of(x: Tensor, source: Tensor, dim: int, index: Any) -> bool:
    """Whether `source` has not the shape of `x` without `dim`, or `index` is out of range, if known."""
    at = dim % x.dim()
    shape = [*x.shape[:at], *x.shape[at + 1 :]]
    if source.dim() != len(shape):
        return True
    known = (
        (n, m) for n, m in zip(shape, source.shape, strict=True) if isinstance(n, int) and isinstance(m, int)
    )
    count = x.shape[at]
    outside = isinstance(index, int) and isinstance(count, int) and not -count <= index < count
    return outside or any(n != m for n, m in known)


REFUSES: Final[Mapping[str, Callable[..., bool]]] = {
    **dict.fromkeys(("index_add", "index_reduce"), _other_rows),
    **dict.fromkeys(("index_copy", "put"), lambda x, *rest, **_: x.dtype != _last(rest).dtype),
    "masked_scatter": lambda x, mask, *_: mask.dtype != torch.bool,
    "select_scatter": _no_slice_of,
    "im2col": _negative_padding,
    "mvlgamma": lambda x, p: p < 1,
    **dict.fromkeys(("addbmm", "addmv", "dot", "linalg_cross", "mv", "vdot"), _mixed),
    **dict.fromkeys(("_prelu_kernel", "binary_cross_entropy", "huber_loss", "soft_margin_loss"), _mixed),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward"),
        lambda x, target, weight, *_: weight is not None and weight.dtype != x.dtype,
    ),
    **dict.fromkeys(
        (
            "native_layer_norm",
            "native_group_norm",
            "native_batch_norm",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit_functional",
            "_native_batch_norm_legit_no_training",
        ),
        _mixed_norm,
    ),
}
"""By an operator's name without its overload: whether eager mode refuses its arguments."""
