"""Operators that libraries alone compute, decomposed for where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from polyfuse.frontend.decompositions.sorting import sort, sort_stable, topk
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.tracing import decomp

_aten = torch.ops.aten

_OF_IMAGES = 4
"""Dimensions of images."""

_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu.default


def without_libraries(*, images_later: bool) -> Mapping[Any, Callable[..., Any]]:
    """What becomes of such operators.

    `images_later`: whether transposed convolutions for which `are_image_phases` holds stay, which are
    decomposed once it is known how images lie.
    """

    def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *numbers: Any) -> Any:
        if images_later and are_image_phases(x, weight, numbers):
            return NotImplemented
        return _convolution(x, weight, bias, *numbers)

    return {
        _aten.convolution.default: convolution,
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
    """`aten.convolution`: a transposed one becomes its phases, or reads its input with zeros between the
    elements, by the weight flipped; others stay.
    """
    if not transposed:
        return NotImplemented
    dims, numbers = len(stride), (stride, padding, dilation, output_padding)
    if has_phases(weight.shape, numbers, groups):
        sizes = x.shape[0], *x.shape[2:]
        return in_phases(_called, (x, weight, bias), sizes, weight.shape, numbers, last=False)
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


Numbers: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""Of a transposed convolution, for each axis: stride, padding, dilation, and what is added to the result."""


def has_phases(shape: Sequence[Any], numbers: Numbers, groups: int) -> bool:
    """Whether a transposed convolution with a weight of this shape is made of convolutions by `in_phases`."""
    stride, _, dilation, _ = numbers
    window = shape[2:]
    reached = all(isinstance(k, int) and k >= s for k, s in zip(window, stride, strict=True))
    return groups == 1 and reached and all(n == 1 for n in dilation)


def are_image_phases(x: Tensor, weight: Tensor, numbers: Sequence[Any]) -> bool:
    """Whether `has_phases` holds for a transposed convolution of images on the host, whose sizes but for
    their count are known.

    Args:
        numbers: of `aten.convolution` behind the bias.
    """
    stride, padding, dilation, transposed, output_padding, groups = numbers
    sizes = (*x.shape[1:], *weight.shape)
    known = x.dim() == _OF_IMAGES and all(isinstance(n, int) for n in sizes)
    if not transposed or not known or not device_of(x.device.type).is_host:
        return False
    return has_phases(weight.shape, (stride, padding, dilation, output_padding), groups)


@dataclass(frozen=True)
class _Run:
    """Neighbouring phases that are made of the same pixels.

    A result's phase is its position modulo the stride; the results of one phase are a convolution of the
    image by every so many-th number of the window.

    Attributes:
        tap: the first number of the window that the first phase reads.
        phases: how many there are.
        before: pixels by which the first result's window begins before the image.
        taps: pixels that are read for each result.
    """

    tap: int
    phases: int
    before: int
    taps: int


def _runs(window: int, stride: int, padding: int) -> list[_Run]:
    """All phases of an axis, in order."""
    found: list[_Run] = []
    for phase in range(stride):
        last, tap = divmod(phase + padding, stride)
        taps = -(-(window - tap) // stride)
        run = _Run(tap, 1, taps - 1 - last, taps)
        same = bool(found) and (found[-1].before, found[-1].taps) == (run.before, run.taps)
        found[-1:] = [replace(found[-1], phases=found[-1].phases + 1)] if same else [*found[-1:], run]
    return found


def fewest_channels(extents: Sequence[Any], shape: Sequence[int], numbers: Numbers) -> int:
    """Channels of the smallest of the convolutions of `in_phases`."""
    count = shape[1]
    for size, k, step, padding, _, more in zip(extents, shape[2:], *numbers, strict=True):
        count *= min(run.phases for run in _runs(k, _apart(size, k, step, padding, more), padding))
    return count


def _apart(size: Any, window: int, stride: int, padding: int, more: int) -> int:
    """The stride of an axis; the window where there is a single pixel, whose results lie side by side."""
    single = isinstance(size, int) and size == 1 and not padding and not more
    return window if single else stride


def in_phases(
    call: Callable[..., Any],
    operands: tuple[Any, Any, Any],
    sizes: Sequence[Any],
    shape: Sequence[int],
    numbers: Numbers,
    last: bool,
) -> Any:
    """A transposed convolution for which `has_phases` holds, by convolutions without zeros between pixels:
    one for all phases that read the same pixels, with a channel for each number of such a block. Where
    windows lie side by side, there is a single one, of windows of one pixel.

    Args:
        call: calls an operator, on tensors or as a new node of a graph.
        operands: the image, the weight, and the bias or None.
        sizes: how many images there are (-1: any number), and their extents.
        shape: of the weight.
        last: whether the results lie with their channels last, as the image does.
    """
    image, weight, bias = operands
    outputs, window = shape[1], shape[2:]
    batch, *extents = sizes
    dims = len(window)
    axes: list[list[_Run]] = []
    counts: list[Any] = []  # results of a phase, for each axis
    strides: list[int] = []
    lengths: list[Any] = []
    for size, k, step, padding, _, more in zip(extents, window, *numbers, strict=True):
        step = _apart(size, k, step, padding, more)
        beyond = k - step - 2 * padding + more
        axes.append(_runs(k, step, padding))
        strides.append(step)
        counts.append(size - (-beyond // step))
        lengths.append(size * step + beyond)

    def joined(runs: tuple[_Run, ...], rest: Sequence[list[_Run]]) -> Any:
        if rest:
            parts = [joined((*runs, run), rest[1:]) for run in rest[0]]
            at = len(runs) + 1 + (dims if last else 0)
            return parts[0] if len(parts) == 1 else call(_aten.cat.default, parts, at)
        margins = [
            max(run.before, n - size + run.taps - 1 - run.before, 0)
            for run, n, size in zip(runs, counts, extents, strict=True)
        ]
        block = [run.phases for run in runs]
        flat = _of_phases(call, weight, shape, runs, strides)
        added = None if bias is None else call(_aten.repeat.default, bias, [prod(block)])
        ones, none = [1] * dims, [0] * dims
        made = call(_aten.convolution.default, image, flat, added, ones, margins, ones, False, none, 1)
        if last:
            made = call(_aten.permute.default, made, [0, *range(2, 2 + dims), 1])
        for d, (run, n, margin) in enumerate(zip(runs, counts, margins, strict=True)):
            first = margin - run.before
            if first or n + run.taps - 1 != extents[d] + 2 * margin:
                made = call(_aten.slice.Tensor, made, d + (1 if last else 2), first, first + n)
        given = [*counts, *block, outputs] if last else [*block, outputs, *counts]
        return call(_aten.view.default, made, [batch, *given])

    made = joined((), axes)
    if last:
        order = [0, *(at for d in range(dims) for at in (1 + d, 1 + dims + d)), 1 + 2 * dims]
    else:
        order = [0, 1 + dims, *(at for d in range(dims) for at in (2 + dims + d, 1 + d))]
    made = call(_aten.permute.default, made, order)
    made = call(_aten.clone.default, made, memory_format=torch.contiguous_format)
    whole = [n * step for n, step in zip(counts, strides, strict=True)]
    made = call(_aten.view.default, made, [batch, *whole, outputs] if last else [batch, outputs, *whole])
    cut = [d for d in range(dims) if whole[d] != lengths[d]]
    for d in cut:
        made = call(_aten.slice.Tensor, made, d + (1 if last else 2), 0, lengths[d])
    if cut:
        made = call(_aten.clone.default, made, memory_format=torch.contiguous_format)
    return call(_aten.permute.default, made, [0, 1 + dims, *range(1, 1 + dims)]) if last else made


def _of_phases(
    call: Callable[..., Any], weight: Any, shape: Sequence[int], runs: Sequence[_Run], strides: Sequence[int]
) -> Any:
    """The weight of some phases: for each of them and each channel of the result, so many numbers of the
    window, the last one first.
    """
    inputs, outputs = shape[:2]
    dims = len(runs)
    for d, (run, step) in enumerate(zip(runs, strides, strict=True)):
        end = run.tap + step * (run.taps - 1) + run.phases
        if run.tap or end != shape[2 + d]:
            weight = call(_aten.slice.Tensor, weight, 2 + d, run.tap, end)
        weight = call(_aten.unfold.default, weight, 2 + d, run.phases, step)
    turned = [2 + d for d, run in enumerate(runs) if run.taps > 1]
    if turned:
        weight = call(_aten.flip.default, weight, turned)
    order = [*range(2 + dims, 2 + 2 * dims), 1, 0, *range(2, 2 + dims)]
    weight = call(_aten.permute.default, weight, order)
    weight = call(_aten.clone.default, weight, memory_format=torch.contiguous_format)
    count = prod(run.phases for run in runs)
    return call(_aten.view.default, weight, [count * outputs, inputs, *(run.taps for run in runs)])


def _called(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def _spread(x: Tensor, dim: int, step: int) -> Tensor:
    """The elements along a dimension with `step - 1` zeros between neighbours."""
    if step == 1:
        return x
    pairs = _aten.constant_pad_nd(x.unsqueeze(dim + 1), [0, 0] * (x.dim() - dim - 1) + [0, step - 1])
    together = pairs.flatten(dim, dim + 1)
    return together.narrow(dim, 0, (x.shape[dim] - 1) * step + 1)
