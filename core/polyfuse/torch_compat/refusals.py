"""Which types of elements eager mode refuses, operator by operator.

What eager mode refuses stays an eager operator, and so raises what that raises, when it runs. An operator
that a kernel computes for more types than eager mode would hide a mistake in the model. Taking one too many
into these tables costs speed, and is never wrong.

Measured with the samples of torch's own operator database, with their floating-point tensors in other types,
on the CPU: all that raise NotImplementedError there, and RuntimeError where tracing does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import torch

from polyfuse.torch_compat.ops import OpOverload, argument_names, base_name

_BOOL = frozenset((torch.bool,))
_COMPLEX = frozenset((torch.complex32, torch.complex64, torch.complex128))
_HALF = frozenset((torch.float16, torch.bfloat16))
_WIDE = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
_INTEGERS = _WIDE | {torch.uint8}

_GROUPS: Final[Mapping[str, frozenset[torch.dtype]]] = {
    # floating-point numbers alone
    "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d "
    "adaptive_max_pool3d max_unpool2d max_unpool3d _softmax _log_softmax _softmax_backward_data "
    "_native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm "
    "binary_cross_entropy celu frac gelu glu grid_sampler_2d grid_sampler_3d hardshrink hardsigmoid "
    "hardswish huber_loss hypot igamma igammac leaky_relu lerp log_sigmoid_forward logaddexp logaddexp2 "
    "logcumsumexp mish mse_loss multi_margin_loss multilabel_margin_loss_forward nextafter nll_loss_forward "
    "_prelu_kernel round.decimals silu smooth_l1_loss soft_margin_loss softplus upsample_linear1d "
    "upsample_trilinear3d": _INTEGERS | _BOOL,
    # and bytes, which stand for pixels
    "_upsample_bilinear2d_aa _upsample_nearest_exact1d upsample_bicubic2d upsample_bilinear2d "
    "upsample_nearest1d upsample_nearest2d": _WIDE | _BOOL,
    # and 64-bit integers
    "avg_pool2d avg_pool3d": (_INTEGERS | _BOOL) - {torch.int64},
    "col2im im2col max_pool2d_with_indices_backward": _INTEGERS,
    # numbers of all kinds
    "abs addbmm addcdiv addcmul addmv argmax argmin baddbmm bitwise_left_shift.Tensor "
    "bitwise_right_shift.Tensor bmm bucketize.Tensor ceil clamp.Tensor convolution div.Tensor_mode dot floor "
    "fmod.Tensor gcd linalg_cross max_pool2d_with_indices max_pool3d_with_indices median mv mvlgamma "
    "nanmedian pow.Tensor_Tensor reflection_pad1d relu remainder.Tensor replication_pad1d replication_pad2d "
    "round.default rsub searchsorted.Tensor sub threshold trace trunc vdot": _BOOL,
    "special_log_ndtr": _HALF,
    # real numbers; and what tracing refuses, where eager mode does not (`nan_to_num`)
    "_native_batch_norm_legit _native_batch_norm_legit_no_training native_batch_norm native_group_norm "
    "binary_cross_entropy clamp clamp.Tensor clamp_max clamp_min elu gelu glu hardshrink heaviside "
    "huber_loss log_sigmoid_forward mse_loss nan_to_num nansum nll_loss_forward smooth_l1_loss softshrink "
    "special_xlog1py xlogy": _COMPLEX,
}

_WHEREVER: Final = frozenset(("aten.rsub", "aten.sub"))
"""Operators that are refused for the type of any tensor, not of the first one alone."""


def _by_name() -> dict[str, frozenset[torch.dtype]]:
    found: dict[str, frozenset[torch.dtype]] = {}
    for names, types in _GROUPS.items():
        for name in names.split():
            found[f"aten.{name}"] = found.get(f"aten.{name}", frozenset()) | types
    return found


_REFUSED: Final = _by_name()


def is_ever_refused(operator: str) -> bool:
    """Whether eager mode refuses an operator for some type."""
    return operator in _REFUSED or operator.rpartition(".")[0] in _REFUSED


def is_refused(operator: str, dtypes: Iterable[torch.dtype]) -> bool:
    """Whether eager mode refuses an operator (`aten.name.overload`) for the types of its tensors in order."""
    packet = operator.rpartition(".")[0]
    found = _REFUSED.get(operator, _REFUSED.get(packet))
    if found is None:
        return False
    return any(dtype in found for dtype in (dtypes if packet in _WHEREVER else islice(dtypes, 1)))


_ARGUMENTS: Final[Mapping[str, str]] = {
    "add sub rsub index_add": "alpha",
    "addcmul addcdiv masked_fill index_fill fill constant_pad_nd scatter": "value",
    "addmm addmv addr baddbmm addbmm": "alpha beta",
    "full full_like new_full": "fill_value",
    "clamp clamp_min clamp_max": "min max",
    "hardtanh": "min_val max_val",
    "threshold": "threshold value",
    "elu celu": "alpha scale input_scale",
    "leaky_relu": "negative_slope",
    "softplus": "beta threshold",
    "hardshrink": "lambd",
    "lerp": "weight",
    "linspace": "start end",
    "pow": "exponent",
    "scalar_tensor": "s",
}
_NUMBERS: Final = {name: found.split() for names, found in _ARGUMENTS.items() for name in names.split()}
"""By an operator's name without its overload: the numbers that eager mode converts to the type of the result,
and refuses where that overflows."""


def converts_numbers(operator: OpOverload) -> bool:
    """Whether eager mode may refuse a number of an operator for its size."""
    return base_name(operator) in _NUMBERS


def takes_no_number(
    operator: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dtype: torch.dtype | None = None,
    original: OpOverload | None = None,
) -> bool:
    """Whether a call may have a number too large for the type of its result, which eager mode refuses.

    Args:
        operator: what is called.
        args, kwargs: its arguments.
        dtype: the type of its result; None for that of its first tensor.
        original: the operator of which a decomposition made the call; None for the same.
    """
    names, called = _NUMBERS.get(base_name(operator)), base_name(original or operator)
    if names is None or called not in _NUMBERS:
        return False
    given = {**dict(zip(argument_names(operator), args, strict=False)), **kwargs}
    numbers = [given[name] for name in names if type(given.get(name)) in (int, float)]
    if not numbers:
        return False
    if dtype is None:
        tensors = (a.dtype for a in args if isinstance(a, torch.Tensor))
        dtype = given.get("dtype") or next(tensors, None)
    if dtype is None or dtype is torch.bool:
        return False
    if dtype.is_floating_point and dtype.itemsize == 2 and called == "scalar_tensor":
        return False  # eager mode makes infinity of a single number
    return any(_overflows(n, dtype) for n in numbers)


def _overflows(number: int | float, dtype: torch.dtype) -> bool:
    if dtype.is_complex:
        return False
    if dtype.is_floating_point:
        if dtype.itemsize < 2 or math.isnan(number) or math.isinf(number):
            return False
        return abs(number) > torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    # a negative integer may stand for a large one without a sign
    lowest = limits.min or (-limits.max if isinstance(number, int) else 0)
    return not lowest <= number <= limits.max
