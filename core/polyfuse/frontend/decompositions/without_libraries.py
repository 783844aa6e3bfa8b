"""Operators that libraries alone compute, decomposed for where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from polyfuse.frontend.decompositions.sorting import sort, sort_stable, topk
from polyfuse.torch_compat.tracing import decomp

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu.default


def without_libraries() -> Mapping[Any, Callable[..., Any]]:
    """What becomes of such operators."""
    return {
        _aten.convolution.default: _convolution,
        _ATTENTION: _attention,
        _aten._scaled_dot_product_flash_attention.default: _flash_attention,
        _aten._scaled_dot_product_efficient_attention.default: _biased_attention,
        _aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
        _aten.sort.default: sort,
        _aten.sort.stable: sort_stable,
        _aten.topk.default: topk,
    }


def _attention(*args: Any, **kwargs: Any) -> Any:
    """Attention as matmuls and a softmax, laid out as the library's: views that follow count on it."""
    result, *others = decomp.registered()[_ATTENTION](*args, **kwargs)
    tokens_first = result.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    return (tokens_first.transpose(1, 2), *others)


def _flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """The one of GPUs whose library takes no mask; its results are those of cuDNN's, one by one."""
    return _cudnn_attention(
        query, key, value, None, False, dropout_p, is_causal, return_debug_mask, scale=scale
    )


def _biased_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """The one of GPUs that takes a mask."""
    none = query.new_empty(0)
    return (*_of_gpus(query, key, value, attn_bias, dropout_p, is_causal, scale), none, none)


def _cudnn_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """cuDNN's, which takes a mask too."""
    result, sums = _of_gpus(query, key, value, attn_bias, dropout_p, is_causal, scale)
    none = query.new_empty(0)
    return (result, sums, none, none, query.shape[2], key.shape[2], none, none, none)


def _of_gpus(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention without gradients: of what libraries return for these, only the result is read."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    result, sums = _attention(query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale)
    return result, sums


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """`aten.convolution`: a transposed one reads its input with zeros between the elements, by the weight
    flipped; others stay.
    """
    if not transposed:
        return NotImplemented
    dims = len(stride)
    if groups == 1 and lie_side_by_side(weight.shape[2:], stride, padding, dilation, output_padding):
        sizes = x.shape[0], *x.shape[2:]
        return blocks_of_pixels(_called, _called, (x, weight, bias), sizes, weight.shape, last=False)
    for d in range(dims):
        x = _spread(x, x.dim() - dims + d, stride[d])
    margins: list[int] = []
    for d in reversed(range(dims)):
        reach = dilation[d] * (weight.shape[2 + d] - 1) - padding[d]
        margins += [reach, reach + output_padding[d]]
    x = _aten.constant_pad_nd(x, margins)
    inputs, outputs, *window = weight.shape
    flipped = weight.reshape(groups, inputs // groups, outputs, *window).transpose(1, 2)
    flipped = flipped.reshape(groups * outputs, inputs // groups, *window).flip([2 + d for d in range(dims)])
    ones, none = [1] * dims, [0] * dims
    return _aten.convolution(x, flipped, bias, ones, none, dilation, False, none, groups)


def lie_side_by_side(
    window: Sequence[Any],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> bool:
    """Whether no result of a transposed convolution is the sum of several windows, or left without one."""
    return (
        list(stride) == list(window)
        and all(n == 1 for n in dilation)
        and not any((*padding, *output_padding))
    )


def blocks_of_pixels(
    call: Callable[..., Any],
    of_weight: Callable[..., Any],
    operands: tuple[Any, Any, Any],
    sizes: Sequence[Any],
    shape: Sequence[int],
    last: bool,
) -> Any:
    """A transposed convolution whose windows lie side by side: each pixel gives a block of results, as a
    convolution of windows of one pixel does that has a channel for each number of a block.

    Args:
        call: calls an operator, on tensors or as a new node of a graph.
        of_weight: the same, for what follows from the weight and the bias alone.
        operands: the image, the weight, and the bias or None.
        sizes: how many images there are (-1: any number), and their extents.
        shape: of the weight.
        last: whether the results lie with their channels last, as the image does.
    """
    image, weight, bias = operands
    inputs, outputs, *window = shape
    batch, *extents = sizes
    dims, count = len(window), prod(window)
    # the numbers of a block in the order in which they will lie: by the window, then by channel
    flat = of_weight(_aten.permute.default, weight, [*range(2, 2 + dims), 1, 0])
    flat = of_weight(_aten.clone.default, flat, memory_format=torch.contiguous_format)
    flat = of_weight(_aten.view.default, flat, [count * outputs, inputs, *[1] * dims])
    if bias is not None:
        bias = of_weight(_aten.repeat.default, bias, [count])
    ones, none = [1] * dims, [0] * dims
    made = call(_aten.convolution.default, image, flat, bias, ones, none, ones, False, none, 1)
    joined = [n * k for n, k in zip(extents, window, strict=True)]
    if last:
        made = call(_aten.permute.default, made, [0, *range(2, 2 + dims), 1])
        made = call(_aten.view.default, made, [batch, *extents, *window, outputs])
        order = [0, *(at for d in range(dims) for at in (1 + d, 1 + dims + d)), 1 + 2 * dims]
        joined = [*joined, outputs]
    else:
        made = call(_aten.view.default, made, [batch, *window, outputs, *extents])
        order = [0, 1 + dims, *(at for d in range(dims) for at in (2 + dims + d, 1 + d))]
        joined = [outputs, *joined]
    made = call(_aten.permute.default, made, order)
    made = call(_aten.clone.default, made, memory_format=torch.contiguous_format)
    made = call(_aten.view.default, made, [batch, *joined])
    return call(_aten.permute.default, made, [0, 1 + dims, *range(1, 1 + dims)]) if last else made


def _called(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def _spread(x: Tensor, dim: int, step: int) -> Tensor:
    """The elements along a dimension with `step - 1` zeros between neighbours."""
    if step == 1:
        return x
    pairs = _aten.constant_pad_nd(x.unsqueeze(dim + 1), [0, 0] * (x.dim() - dim - 1) + [0, step - 1])
    together = pairs.flatten(dim, dim + 1)
    return together.narrow(dim, 0, (x.shape[dim] - 1) * step + 1)
