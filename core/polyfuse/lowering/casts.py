"""Copies and conversions: dtype, memory format, device."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.extern import call
from polyfuse.lowering.pointwise import elementwise, promoted
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.torch_compat import ops


@lowers(
    "aten._to_copy.default",
    "aten.clone.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    "prims.convert_element_type.default",
    "prims.clone.default",
    "aten.copy.default",
)
def convert(ctx: LoweringContext, node: Any, value: TensorValue, *others: Any, **named: Any) -> TensorValue:
    """A fresh value with the elements of another, perhaps of another type or layout."""
    name = ops.op_name(node.target)
    source = others[0] if name == "aten.copy.default" else value
    result = ctx.template(node.meta["val"])
    if not isinstance(source, TensorValue):
        return elementwise(ctx, node, (source,), lambda v: v)
    if result.dtype is None or source.dtype is None:
        raise UnsupportedError(f"{source.torch_dtype} to {result.torch_dtype} is converted by eager")
    if source.device != result.device:
        copied: TensorValue = call(ctx, node.meta["val"], name, (value, *others), named)
        return copied
    axes = axes_of(result.size)
    if source.dtype is result.dtype:
        return ctx.lazy(result, source.expand_to(axes))
    # where digits are cut off, the rounding to half precision before may decide which
    through = None if result.dtype.is_float else source.dtype
    return ctx.lazy(result, ctx.operand(source, axes, result.dtype.compute, result.device, through))


@lowers("aten.fill.Scalar", "aten.fill.Tensor", "aten.full_like.default")
def fill(ctx: LoweringContext, node: Any, value: TensorValue, number: Any, **named: Any) -> TensorValue:
    return elementwise(ctx, node, (number,), lambda v: v)


@lowers("aten.type_as.default")
def type_as(ctx: LoweringContext, node: Any, value: TensorValue, other: TensorValue) -> TensorValue:
    return elementwise(ctx, node, (value,), lambda v: v, promoted((value,)))
