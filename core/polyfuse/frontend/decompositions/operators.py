"""Decompositions that torch does not have, or whose steps fuse worse than these.

A decomposition may return `NotImplemented`: the operator then stays whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from polyfuse.frontend.decompositions.refused import REFUSES
from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.refusals import converts_numbers, is_ever_refused, is_refused, takes_no_number
from polyfuse.torch_compat.tracing import decomp, shapes
from polyfuse.torch_compat.tracing.global_state import plain_operators
from polyfuse.torch_compat.tracing.written_strides import memory_order

_HALF = (torch.float16, torch.bfloat16)


def frac(x: Tensor) -> Tensor:
    """What is behind the point; of a zero, zero without a sign, as eager mode has it."""
    return x - torch.trunc(x)


def sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    """The gradient in eager mode's order of factors, which decides what becomes of numbers too large."""
    if output.is_complex():
        return grad_output * (output * (1 - output)).conj_physical()
    return grad_output * (1 - output) * output


def softshrink(x: Tensor, lambd: float = 0.5) -> Tensor:
    """What is beyond a limit of either sign, and between them NaN or a zero without a sign."""
    between = torch.where(torch.isnan(x), x, 0.0)
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, between))


def celu(x: Tensor, alpha: float = 1.0) -> Any:
    """An `elu` with what eager mode hands to it; `alpha` of zero it refuses itself."""
    return torch.ops.aten.elu.default(x, alpha, 1.0, 1.0 / alpha) if alpha != 0 else NotImplemented


def weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Gradients of a weight's directions and of their lengths, one for each position along `dim`."""
    given = (grad_w, saved_v, saved_g, saved_norms)
    grad, v, g, norms = (t.float() if t.dtype in _HALF else t for t in given)
    others = [d for d in range(v.dim()) if d != dim]
    length = (grad * v).sum(others, keepdim=True) / norms
    direction = (grad - v * (length / norms)) * (g / norms)
    return direction.to(saved_v.dtype), length.to(saved_g.dtype)


def zeros_with_memory(
    size: Sequence[int], *, layout: torch.layout | None = None, pin_memory: bool | None = None, **like: Any
) -> Tensor:
    """The zeros that forward-mode differentiation puts for tangents: eager mode's have no memory to read."""
    return torch.zeros(size, **like)


def in_opmath(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Run a pointwise decomposition in float32 where all tensors are half precision, as eager kernels do."""

    @functools.wraps(decomposition)
    def widened(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
        dtypes = {t.dtype for t in tensors}
        if len(dtypes) != 1 or (dtype := next(iter(dtypes))) not in _HALF:
            return decomposition(*args, **kwargs)

        def widen(a: Any) -> Any:
            return a.to(torch.float32) if isinstance(a, Tensor) else a

        result = decomposition(*map(widen, args), **{k: widen(v) for k, v in kwargs.items()})
        return result.to(dtype)

    return widened


def max_pool1d(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """torch's decomposition, which takes integers, that eager mode refuses: an operator that refuses them as
    well, with a result of the same shape, stands for those."""
    result: Tensor = decomp.composed(torch.ops.aten.max_pool1d.default, x, *args, **kwargs)
    if x.is_floating_point():
        return result
    rows = torch.ops.aten.adaptive_max_pool2d.default(x.unsqueeze(-2), [1, result.shape[-1]])[0]
    return rows.squeeze(-2)


def floating_only(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the operator when its first argument is not floating point."""

    @functools.wraps(decomposition)
    def checked(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        return decomposition(first, *args, **kwargs) if first.is_floating_point() else NotImplemented

    return checked


def steps_in_sixteen_bits(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Keep `linspace` in a type of 16 bits on the CPU: eager mode rounds the step, and what it counts on from
    once in so many numbers as its vectors have.
    """

    @functools.wraps(decomposition)
    def checked(*args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        kind = torch.get_default_dtype() if dtype is None else dtype
        if kind in (torch.float16, torch.bfloat16) and torch.device(device or "cpu").type == "cpu":
            return NotImplemented
        return decomposition(*args, dtype=dtype, device=device, **kwargs)

    return checked


def real_only(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the operator where a tensor is complex: no kernel computes its steps, which would be a call each
    where eager mode makes one.
    """

    @functools.wraps(decomposition)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, Tensor) and a.is_complex() for a in args):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return checked


_FUNCTIONAL: Mapping[str, Callable[..., Any]] = {
    # training, eager mode refuses to trace already
    "aten._native_batch_norm_legit.default": lambda *a: (
        torch.ops.aten._native_batch_norm_legit_no_training.default(*a[:5], *a[6:])
    )
}
"""Operators that write to no argument and are refused alike, for some that do: these cannot stay whole."""


def unless_refused(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the operator where eager mode raises for its arguments, so that it still does."""
    name = ops.op_name(op)
    refuses = REFUSES.get(ops.base_name(op))
    converts = converts_numbers(op)
    if not is_ever_refused(name) and refuses is None and not converts:
        return decomposition

    @functools.wraps(decomposition)
    def checked(*args: Any, **kwargs: Any) -> Any:
        refused = is_refused(name, (a.dtype for a in args if isinstance(a, Tensor)))
        refused = refused or (converts and takes_no_number(op, args, kwargs))
        if refused or (refuses is not None and refuses(*args, **kwargs)):
            functional = _FUNCTIONAL.get(name)
            return NotImplemented if functional is None else functional(*args)
        return decomposition(*args, **kwargs)

    return checked


def floating_before_autograd(op: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The same for an operator that torch breaks up before autograd sees it; integers need no gradient."""
    whole = with_size(op) or functools.partial(decomp.below_autograd, op)

    def chosen(first: Tensor, *args: Any, **kwargs: Any) -> Any:
        return (decomposition if first.is_floating_point() else whole)(first, *args, **kwargs)

    return chosen


def logit(x: Tensor, eps: float | None = None) -> Any:
    """Half precision is computed in float32, but on the CPU, where eager mode has no wider type for any step
    and rounds the bounds too: an `eps` too small for them leaves the infinities."""
    if not x.is_floating_point():
        return NotImplemented
    half = x.dtype in _HALF
    narrow = half and x.device.type == "cpu"
    wide = x.to(torch.float32) if half and not narrow else x
    if eps is not None:
        wide = torch.clamp(wide, *(_rounded_bounds(eps, x.dtype) if narrow else (eps, 1 - eps)))
    return torch.log(wide / (1 - wide)).to(x.dtype)


def logit_backward(grad_output: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    """The gradient is NaN where `x` is; beyond the bounds it is zero, and NaN without `eps`."""
    low, outside = (0.0, float("nan")) if eps is None else (eps, 0.0)
    # the magnitude, since of both zeros the gradient is infinite with its own sign
    inside = grad_output / (torch.abs(x) * (1.0 - x))
    return torch.where((x < low) | (x > 1.0 - low), outside, inside)


def _rounded_bounds(eps: float, dtype: torch.dtype) -> tuple[float, float]:
    with plain_operators():
        low = torch.tensor(float(eps), dtype=dtype)
        return low.item(), (1 - low).item()


def native_dropout(x: Tensor, p: float, train: bool | None) -> Any:
    """Drawing the mask stays an operator, so the numbers are those of eager mode; using it fuses.

    Where eager mode draws inside a kernel of its own (`Device.bernoulli_dropout`), it stays whole.
    """
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    if not device_of(x.device.type).bernoulli_dropout:
        return NotImplemented
    draws = _drawn_as_in_memory(x, 1 - p)
    return x * (draws / (1 - p)), draws.to(torch.bool)


def _drawn_as_in_memory(x: Tensor, p: float) -> Tensor:
    """Eager mode draws into a tensor that lies as `x` does, in the order of its memory; the operator that
    writes to nothing draws row by row."""
    if shapes.is_unbacked(x) or x.is_contiguous():
        return torch.bernoulli(x, p)
    order = memory_order(torch.empty_like(x))
    return torch.bernoulli(x.permute(order), p).permute([order.index(d) for d in range(x.dim())])


def native_layer_norm(
    x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """Means and deviations of 16-bit rows beside weights of f32 are f32; torch's decomposition rounds them on
    the CPU."""
    wide = next((p.dtype for p in (weight, bias) if p is not None), x.dtype)
    if wide is not torch.float32 or x.element_size() != 2 or not device_of(x.device.type).is_host:
        return NotImplemented
    result, mean, deviation = torch.native_layer_norm(x.to(wide), shape, weight, bias, eps)
    return result.to(x.dtype), mean, deviation


def native_group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor, weight: Tensor | None, *rest: Any
) -> Any:
    """Of images without pixels, by whose number torch's decomposition divides: as eager mode has it, sums of
    nothing for the bias, which for the weight are multiplied by means that are no number."""
    _, channels, pixels, groups, mask = rest
    if type(pixels) is not int or pixels:
        return NotImplemented
    of_groups = (mean * 0).sum(0).to(x.dtype)
    of_channels = of_groups[:, None].expand(groups, channels // groups).reshape(channels)
    results = x.new_zeros(x.shape), of_channels, x.new_zeros(channels)
    return tuple(result if wanted else None for result, wanted in zip(results, mask, strict=True))


def slice_backward(
    grad: Tensor, input_sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any
) -> Any:
    """The gradient of a slice is its padding with zeros: one masked read, no scatter."""
    rank = len(input_sizes)
    dim = dim + rank if dim < 0 else dim
    bounds = _static_bounds(input_sizes[dim], start, end, step)
    if bounds is None or not isinstance(grad.shape[dim], int):
        zeros = grad.new_zeros(tuple(input_sizes))
        return torch.slice_scatter(zeros, grad, dim, start, end, step)
    low, high = bounds
    size = int(input_sizes[dim])
    if low == 0 and high == size and step == 1:
        return grad.clone()
    return _padded(grad, dim, low, step, size)


def slice_scatter(
    base: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Any:
    """A slice assignment whose bounds data tell, or of all. Others stay whole: what is assigned to may be
    written to."""
    if step == 1 and shapes.exprs_of(src.shape) == shapes.exprs_of(base.shape):
        return like_layout(src.to(base.dtype).clone(), base)
    if any(map(shapes.is_unbacked, (base.shape[dim], start, end))):
        return like_layout(_slice_scatter_by_data(base, src, dim, start, end, step), base)
    if start is not None and not isinstance(start, int):
        bool(start < 0)  # a guard, so that it is known from where to count
    return NotImplemented


def select_scatter(base: Tensor, src: Tensor, dim: int, index: Any) -> Any:
    """`src` at one position along a dimension that data tell; type and strides are those of `base`."""
    if not shapes.is_unbacked(index):
        if not isinstance(index, int):
            bool(index < 0)  # a guard, as above
        return NotImplemented
    size = base.shape[dim]
    shape = [-1 if d == dim % base.dim() else 1 for d in range(base.dim())]
    position = torch.arange(size, device=base.device).view(shape)
    # whether it counts from the end may be known at run time alone; only one of the two is a position
    chosen = (position == index) | (position == index + size)
    return like_layout(torch.where(chosen, src.to(base.dtype).unsqueeze(dim), base), base)


def diagonal_scatter(base: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal read from `src` and all else from `base`, in one pass; torch's own form writes in place."""
    length = src.shape[-1]
    if length == 0:
        return like_layout(base.clone(), base)
    matrices = base.movedim((dim1, dim2), (-2, -1))
    row = torch.arange(matrices.shape[-2], device=base.device)
    column = torch.arange(matrices.shape[-1], device=base.device)
    position = (row + min(offset, 0)).clamp(0, length - 1)
    values = src.to(base.dtype).index_select(-1, position).unsqueeze(-1)
    on_diagonal = column - row.unsqueeze(-1) == offset
    return like_layout(torch.where(on_diagonal, values, matrices).movedim((-2, -1), (dim1, dim2)), base)


def like_layout(result: Tensor, base: Tensor) -> Tensor:
    """The operator's result has the strides of its first argument."""
    if shapes.exprs_of(result.stride()) == shapes.exprs_of(base.stride()):
        return result
    if shapes.is_unbacked((*result.stride(), *base.stride())):  # nothing is known of their order
        return torch.ops.aten.copy.default(base, result)
    order = memory_order(base)
    inverse = [order.index(d) for d in range(base.dim())]
    dense = result.permute(order).contiguous().permute(inverse)
    if dense.stride() == base.stride() or 0 in base.stride():
        return dense
    return torch.ops.aten.copy.default(base, dense)  # rows are further apart than they are long


def _slice_scatter_by_data(base: Tensor, src: Tensor, dim: int, start: Any, end: Any, step: Any) -> Any:
    """Nothing is asked of bounds that come from data: whether they count from the end is computed too."""
    size, count = base.shape[dim], src.shape[dim]

    def bound(value: Any, otherwise: Any) -> Tensor:
        position = torch.full(
            (), otherwise if value is None else value, dtype=torch.int64, device=base.device
        )
        return torch.where(position < 0, position + size, position)

    distance = torch.arange(size, device=base.device) - bound(start, 0).clamp(min=0)
    inside = (distance >= 0) & (distance < count * step) & (distance % step == 0)
    inside = inside & (torch.arange(size, device=base.device) < bound(end, size))
    # `src` may be empty: what lies outside reads the element after its last
    padded = torch.constant_pad_nd(src.to(base.dtype), _padding(base.dim(), dim, 0, 1), 0)
    values = padded.index_select(dim, torch.where(inside, distance // step, count))
    return torch.where(inside.view([-1 if d == dim else 1 for d in range(base.dim())]), values, base)


def _static_bounds(size: Any, start: Any, end: Any, step: Any) -> tuple[int, int] | None:
    """Start and end inside `[0, size]`; None unless all is plain."""
    if not all(isinstance(v, int | None) for v in (size, start, end)) or not isinstance(step, int):
        return None
    low, high, _ = slice(start, end).indices(size)
    return low, max(low, high)


def _padded(values: Tensor, dim: int, low: int, step: int, size: int) -> Tensor:
    """Values at every `step`-th position of a dimension from `low` on, and zeros at the others of `size`."""
    rank, length = values.dim(), values.shape[dim]
    if step != 1:
        apart = torch.constant_pad_nd(values.unsqueeze(dim + 1), _padding(rank + 1, dim + 1, 0, step - 1), 0)
        length = min(length * step, size - low)
        values = apart.flatten(dim, dim + 1).narrow(dim, 0, length)
    return torch.constant_pad_nd(values, _padding(rank, dim, low, size - low - length), 0)


def _padding(rank: int, dim: int, before: int, after: int) -> list[int]:
    pads = [0] * (2 * rank)
    pads[2 * (rank - 1 - dim)] = before
    pads[2 * (rank - 1 - dim) + 1] = after
    return pads[: 2 * (rank - dim)]


def with_size(op: Any) -> Callable[..., Any] | None:
    """For the overload of a resampling operator that takes scale factors, the one that takes the size of the
    result, which is computed here in sizes that may be symbolic; None for the others."""
    if ops.op_name(op).rpartition(".")[2] != "vec":
        return None
    sized = ops.resolve(ops.op_name(op).removesuffix("vec") + "default")

    def resample(x: Tensor, output_size: Any, *rest: Any) -> Any:
        if "nearest" in ops.base_name(op) and shapes.is_unbacked(x):
            # the operator's shape function asks whether `x` is empty
            return decomp.registered()[op](x, output_size, *rest)
        *options, scales = rest
        spatial = x.shape[2:]
        if output_size is None:
            output_size = [
                n * int(s) if s == int(s) else torch.sym_int(n * s)
                for n, s in zip(spatial, scales, strict=True)
            ]
        empty = [isinstance(n, int) and n == 0 for n in x.shape]
        if empty[0] and not any(empty[1:]):
            # fine in eager mode; what checks sizes while tracing fails on a batch of none. Nothing is summed,
            # but the result has a gradient
            one = x.sum(tuple(range(2, x.dim())), keepdim=True, dtype=x.dtype)
            return one.expand(0, x.shape[1], *output_size).clone(memory_format=torch.contiguous_format)
        result: Tensor = sized(x, output_size, *options, *(scales or [None] * len(spatial)))
        return result

    return resample
