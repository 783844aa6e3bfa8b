"""Conversions between floating point and quantised numbers, element by element, as eager mode computes them.

The operators are those of `torch.ops.quantized_decomposed`. What is rare is declined, and stays a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, apply, cast, const
from polyfuse.ir.types import DType, from_torch
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse.symbolic import IndexLike
from polyfuse_quantized import products
from polyfuse_quantized.products import Quantisation

ParameterAt = Callable[[TensorValue, Sequence[IndexLike]], Expr]
"""From a tensor of parameters and the indices of an element to the scale or zero point of the element."""


def quantize_per_tensor(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> TensorValue:
    """``clamp(round(value * (1 / scale)) + zero_point)``, in single precision."""

    def body(element: Expr) -> Expr:
        inverse = apply("div", const(1.0, DType.f64), _parameter(scale, DType.f64))
        steps = apply("round", apply("mul", element, cast(inverse, DType.f32)))
        return _clamped(apply("add", steps, _parameter(zero_point, DType.f32)), quant_min, quant_max)

    return _integers(ctx, node, value, body)


def dequantize_per_tensor(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> TensorValue:
    """``(value - zero_point) * scale``, in single precision."""
    if out_dtype not in (None, torch.float32):
        raise UnsupportedError(f"{out_dtype} is rounded at each step")

    def body(element: Expr) -> Expr:
        distance = apply("sub", element, _parameter(zero_point, DType.f32))
        return apply("mul", distance, _parameter(scale, DType.f32))

    return ctx.elementwise(node, (value,), body, DType.f32)


def quantize_per_channel(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    scales: TensorValue,
    zero_points: TensorValue,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> TensorValue:
    """``clamp(round(value * (1 / scales)) + zero_points)``, with parameters along `axis`."""
    kind = _kind(torch.float32, scales, zero_points)
    parameter_at = _along(axis % value.rank)

    def body(element: Expr, axes: Sequence[IndexLike]) -> Expr:
        steps = apply("round", apply("mul", element, _inverse(scales, parameter_at, axes, kind)))
        return _clamped(
            apply("add", steps, cast(parameter_at(zero_points, axes), kind)), quant_min, quant_max
        )

    return _converted(ctx, node, value, kind, body)


def quantize_per_token(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    scales: TensorValue,
    zero_points: TensorValue,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> TensorValue:
    """``clamp(round(value * (1 / scales) + zero_points))``, with parameters for each row."""
    kind = _kind(value.torch_dtype, scales, zero_points)

    def body(element: Expr, axes: Sequence[IndexLike]) -> Expr:
        product = apply("mul", element, _inverse(scales, _broadcast, axes, kind))
        moved = apply("add", product, cast(_broadcast(zero_points, axes), kind))
        return _clamped(apply("round", moved), quant_min, quant_max)

    return _converted(ctx, node, value, kind, body)


def dequantize_per_channel(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    scales: TensorValue,
    zero_points: TensorValue | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    out_dtype: torch.dtype | None = None,
) -> TensorValue:
    """``(value - zero_points) * scales``, with parameters along `axis`."""
    return _dequantize(ctx, node, value, scales, zero_points, _along(axis % value.rank))


def dequantize_per_token(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    scales: TensorValue,
    zero_points: TensorValue,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> TensorValue:
    """``(value - zero_points) * scales``, with parameters for each row."""
    return _dequantize(ctx, node, value, scales, zero_points, _broadcast)


def _dequantize(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    scales: TensorValue,
    zero_points: TensorValue | None,
    parameter_at: ParameterAt,
) -> TensorValue:
    # the difference is in the type that eager mode promotes to, and integers wrap in it
    difference = value.torch_dtype
    if zero_points is not None:
        difference = torch.promote_types(difference, zero_points.torch_dtype)
    kind = _kind(difference if difference.is_floating_point else torch.float32, scales, None)
    narrow = from_torch(difference)
    result = from_torch(node.meta["val"].dtype)
    if narrow is None or narrow is not narrow.compute or result not in (kind, DType.f32):
        raise UnsupportedError(f"{difference} or {result} is rounded between the steps")

    def body(element: Expr, axes: Sequence[IndexLike]) -> Expr:
        if zero_points is not None:
            element = apply("sub", element, cast(parameter_at(zero_points, axes), narrow))
        return apply("mul", cast(element, kind), cast(parameter_at(scales, axes), kind))

    return _converted(ctx, node, value, narrow, body)


def _parameter(value: Any, dtype: DType) -> Expr:
    """The one number that a parameter holds."""
    if isinstance(value, (int, float)):
        return const(value, dtype)
    if not hasattr(value, "at"):
        raise UnsupportedError("a parameter is not known as a number")
    return cast(value.at([0] * value.rank), dtype)


def _kind(value: torch.dtype, scales: TensorValue, zero_points: TensorValue | None) -> DType:
    """The type that eager mode computes in: that of the scales, or of the values if they are wider."""
    kind = from_torch(torch.promote_types(value, scales.torch_dtype))
    if kind not in (DType.f32, DType.f64) or scales.dtype not in (DType.f32, DType.f64):
        raise UnsupportedError(f"scales of {scales.torch_dtype} are rounded between the steps")
    if zero_points is not None and zero_points.torch_dtype.is_floating_point:
        if from_torch(torch.promote_types(zero_points.torch_dtype, kind.torch)) is not kind:
            raise UnsupportedError(f"zero points of {zero_points.torch_dtype} are wider than the values")
    return kind


def _along(axis: int) -> ParameterAt:
    """Parameters of one dimension, which is dimension `axis` of the values."""

    def parameter_at(parameters: TensorValue, axes: Sequence[IndexLike]) -> Expr:
        return parameters.at([0 if parameters.size[0] == 1 else axes[axis]])

    return parameter_at


def _broadcast(parameters: TensorValue, axes: Sequence[IndexLike]) -> Expr:
    return parameters.expand_to(axes)


def _inverse(scales: TensorValue, parameter_at: ParameterAt, axes: Sequence[IndexLike], kind: DType) -> Expr:
    scale = parameter_at(scales, axes)
    return cast(apply("div", const(1.0, scale.dtype), scale), kind)


def _clamped(value: Expr, low: int, high: int) -> Expr:
    limits = [const(limit, value.dtype) for limit in (low, high)]
    if any(limit.value != number for limit, number in zip(limits, (low, high), strict=True)):
        raise UnsupportedError(f"{value.dtype} does not hold the limits {low} and {high} exactly")
    return apply("minimum", apply("maximum", value, limits[0]), limits[1])


def _integers(
    ctx: LoweringContext, node: Any, value: TensorValue, body: Callable[[Expr], Expr]
) -> TensorValue:
    """The result of `body` in single precision, converted to the integers of the result."""
    return _converted(ctx, node, value, DType.f32, lambda element, axes: body(element))


def _converted(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    kind: DType,
    body: Callable[[Expr, Sequence[IndexLike]], Expr],
) -> TensorValue:
    """The result of `body` on elements converted to `kind`, converted to the type of the result."""
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"kernels do not compute in {result.torch_dtype}")
    axes = ctx.axes(result)
    element = ctx.operand(value, axes, kind, result.device)
    return ctx.lazy(result, cast(body(element, axes), result.dtype.compute))


_TABLE: Final[Mapping[str, Callable[..., Any] | Lowering]] = {
    "quantize_per_tensor.default": Lowering(quantize_per_tensor, elementwise=True),
    "quantize_per_tensor.tensor": quantize_per_tensor,
    "quantize_per_channel.default": quantize_per_channel,
    "quantize_per_token.default": quantize_per_token,
    "dequantize_per_tensor.default": Lowering(dequantize_per_tensor, elementwise=True),
    "dequantize_per_tensor.tensor": dequantize_per_tensor,
    "dequantize_per_channel.default": dequantize_per_channel,
    "dequantize_per_token.default": dequantize_per_token,
}


def linear(
    ctx: LoweringContext,
    node: Any,
    x: TensorValue,
    x_scale: float,
    x_zero: int,
    weight: TensorValue,
    scales: TensorValue | None,
    weight_scale: float,
    zeros: TensorValue | None,
    bias: TensorValue | None,
    scale: float,
    zero: int,
    dtype: torch.dtype,
    activation: str,
) -> TensorValue:
    """A call with a weight that is packed once."""
    stored = Quantisation(x_scale, x_zero, x.torch_dtype), Quantisation(scale, zero, dtype)
    made = products.Linear(*stored, activation, weight_scale)
    packed = ctx.pack(products.PACK_LINEAR, weight, (None,))
    read = (x, weight, packed, scales, zeros, _skewed(ctx, zeros), bias)
    found: TensorValue = ctx.call(node, ctx.add_object("linear", made), read)
    return found


def convolution(
    ctx: LoweringContext,
    node: Any,
    x: TensorValue,
    x_scale: float,
    x_zero: int,
    weight: TensorValue,
    scales: TensorValue | None,
    weight_scale: float,
    zeros: TensorValue | None,
    bias: TensorValue | None,
    other: TensorValue | None,
    other_scale: float,
    other_zero: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    last: bool,
    scale: float,
    zero: int,
    dtype: torch.dtype,
    activation: str,
) -> TensorValue:
    """The same for a convolution."""
    stored = Quantisation(x_scale, x_zero, x.torch_dtype), Quantisation(scale, zero, dtype)
    window = tuple(stride), tuple(padding), tuple(dilation)
    added = None if other is None else Quantisation(other_scale, other_zero, other.torch_dtype)
    made = products.Convolution(
        *stored, activation, weight_scale, window=window, groups=groups, last=last, other=added
    )
    how = (x_scale, x_zero, scales is not None, *window, groups)
    packed = ctx.pack(products.PACK_CONVOLUTION, weight, how)
    read = (x, weight, packed, scales, zeros, _skewed(ctx, zeros), bias, other)
    found: TensorValue = ctx.call(node, ctx.add_object("convolution", made), read)
    return found


def _skewed(ctx: LoweringContext, zeros: TensorValue | None) -> TensorValue | None:
    """Whether a zero point is not zero, looked at once; without freezing, seeing that they have not changed
    takes longer than looking at them.
    """
    return None if zeros is None or not ctx.settings.freezing else ctx.pack(products.ANY, zeros)


LOWERINGS: Final[Mapping[str, Callable[..., Any] | Lowering]] = {
    **{f"quantized_decomposed.{name}": function for name, function in _TABLE.items()},
    products.LINEAR: linear,
    products.CONVOLUTION: convolution,
}
"""Operator to lowering."""
