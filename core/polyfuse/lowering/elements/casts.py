"""Copies and conversions: dtype, memory format, device; and copies over existing storage."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.pointwise import elementwise, promoted
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, is_held
from polyfuse.torch_compat import ops
from polyfuse.torch_compat.tracing import fx

_CONVERSIONS = ("aten._to_copy.default", "prims.convert_element_type.default")
_COPIES = ("aten.copy.default", "aten.copy_.default")


@lowers(
    "aten._to_copy.default",
    "aten.clone.default",
    "aten.alias_copy.default",
    "aten.contiguous.default",
    "aten.lift_fresh_copy.default",
    "prims.convert_element_type.default",
    "prims.clone.default",
    "prims.copy_strided.default",
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
        raise UnsupportedError(f"no kernel converts {source.torch_dtype} to {result.torch_dtype}")
    if source.device != result.device:
        copied: TensorValue = call(ctx, node.meta["val"], name, (value, *others), named)
        return copied
    axes = axes_of(result.size)
    if source.dtype is result.dtype:
        return ctx.lazy(result, source.expand_to(axes))
    # where digits are cut off, the rounding to half precision before may decide which
    through = None if result.dtype.is_float else source.dtype
    body = ctx.operand(source, axes, result.dtype.compute, result.device, through)
    if _is_written(node) and result.dtype is not result.dtype.compute and not is_held(body, result.dtype):
        body = cast(cast(body, result.dtype), result.dtype.compute)
    return ctx.lazy(result, body)


def _is_written(node: Any) -> bool:
    """Whether the program converts here, and no decomposition does: who writes that wants values rounded."""
    original = fx.original_operator(node)
    return original is not None and ops.op_name(original) in (*_CONVERSIONS, *_COPIES)


@lowers("aten.fill.Scalar", "aten.fill.Tensor", "aten.full_like.default")
def fill(ctx: LoweringContext, node: Any, value: TensorValue, number: Any, **named: Any) -> TensorValue:
    return elementwise(ctx, node, (number,), lambda v: v)


@lowers("aten.type_as.default")
def type_as(ctx: LoweringContext, node: Any, value: TensorValue, other: TensorValue) -> TensorValue:
    return elementwise(ctx, node, (value,), lambda v: v, promoted((value,)))


@lowers("aten.copy_.default")
def copy_(
    ctx: LoweringContext, node: Any, target: TensorValue, source: Any, non_blocking: bool = False
) -> TensorValue:
    """Write `source` over `target`, after everything that still needs the old content has it: what
    functionalisation leaves at the end of a graph."""
    if target.dtype is None or target.view is None or target.raw is not None:
        raise UnsupportedError(f"no kernel overwrites tensors of {target.torch_dtype}")
    if isinstance(source, TensorValue) and source.device != target.device:
        raise UnsupportedError(f"no kernel copies from {source.device} to {target.device}")
    if any(s == 0 and n != 1 for n, s in zip(target.size, target.view.stride, strict=True)):
        raise UnsupportedError("no kernel overwrites elements that share memory")
    if isinstance(source, TensorValue) and source.view == target.view and source.raw is None:
        return target  # it was computed there
    ctx.before_write(target.view.buffer)
    value = TensorValue(
        target.dtype, target.torch_dtype, target.device, target.size, target.stride, target.offset
    )
    body = ctx.operand(source, axes_of(target.size), target.dtype.compute, target.device)
    value.body = cast(body, target.dtype.compute)
    value.origins = ctx.origins
    ctx.write(value, target.view)
    return target
