"""Tensors made of nothing: filled, counted, uninitialised."""

from __future__ import annotations

from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.numbers import is_whole
from polyfuse.lowering.elements.pointwise import elementwise
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make
from polyfuse.symbolic import IndexLike


@lowers("aten.full.default", "aten.new_full.default")
def full(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    number = named.get("fill_value", args[-1] if args else None)
    return elementwise(ctx, node, (number,), lambda v: v)


@lowers("aten.scalar_tensor.default")
def scalar_tensor(ctx: LoweringContext, node: Any, number: Any, **named: Any) -> TensorValue:
    return elementwise(ctx, node, (number,), lambda v: v)


def _filled(number: int) -> Any:
    def lower(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
        result = ctx.template(node.meta["val"])
        if result.dtype is None:
            raise UnsupportedError(f"{result.torch_dtype} is not a type that kernels compute in")
        return ctx.lazy(result, const(number, result.dtype.compute))

    return lower


for _number, _stem in ((0, "zeros"), (1, "ones")):
    lowers(f"aten.{_stem}.default", f"aten.{_stem}_like.default", f"aten.new_{_stem}.default")(
        _filled(_number)
    )

# What uninitialised memory holds is nobody's to rely on, so these cost nothing: they are zero wherever they
# are read.
lowers(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)(_filled(0))


@lowers("prims.iota.default")
def iota(ctx: LoweringContext, node: Any, length: Any, *, start: Any, step: Any, **named: Any) -> TensorValue:
    result = ctx.template(node.meta["val"])
    assert result.dtype is not None
    return ctx.lazy(result, cast(index_value(axes_of(result.size)[0] * step + start), result.dtype.compute))


@lowers("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def arange(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    start, end, step = (
        (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) > 2 else 1)
    )
    del end
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"{result.torch_dtype} is not a type that kernels compute in")
    place: IndexLike = axes_of(result.size)[0]
    if is_whole(start) and is_whole(step):
        return ctx.lazy(result, cast(index_value(place * step + start), result.dtype.compute))
    # eager counts in double precision (single on devices that lack it) and converts the sum
    wide = DType.f64 if result.dtype is not DType.f32 or result.device == "cpu" else DType.f32
    first, stride = (ctx.operand(number, (), wide, result.device) for number in (start, step))
    counted = make("mul", cast(index_value(place), wide), stride)
    return ctx.lazy(result, cast(make("add", first, counted), result.dtype.compute))
