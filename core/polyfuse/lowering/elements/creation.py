"""Tensors made of nothing: filled, counted, uninitialised."""

from __future__ import annotations

import math
from typing import Any

import torch

from polyfuse.ir.expr import const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.elements.numbers import is_integer
from polyfuse.lowering.elements.pointwise import elementwise
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make


@lowers("aten.full.default", "aten.new_full.default", "aten.scalar_tensor.default")
def full(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    return elementwise(ctx, node, (named.get("fill_value", args[-1] if args else None),), lambda v: v)


def _filled(number: int) -> Any:
    def lower(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
        result = ctx.template(node.meta["val"])
        return ctx.lazy(result, const(number, result.kernel_type.compute))

    return lower


for _number, _stem in ((0, "zeros"), (1, "ones")):
    lowers(f"aten.{_stem}.default", f"aten.{_stem}_like.default", f"aten.new_{_stem}.default")(
        _filled(_number)
    )


@lowers(
    "aten.empty.memory_format",
    "aten.empty_like.default",
    "aten.empty_strided.default",
    "aten.empty_permuted.default",
    "aten.new_empty.default",
    "aten.new_empty_strided.default",
)
def uninitialised(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    """What such memory holds is nobody's to rely on, so it costs nothing: it is zero wherever it is read, and
    what eager mode fills it with where torch asks for deterministic algorithms, so that a read is seen."""
    result = ctx.template(node.meta["val"])
    kind = result.kernel_type
    number: Any = 0
    if torch.are_deterministic_algorithms_enabled() and torch.utils.deterministic.fill_uninitialized_memory:
        number = math.nan if kind.is_float else kind.highest
    return ctx.lazy(result, const(number, kind.compute))


@lowers("prims.iota.default")
def iota(ctx: LoweringContext, node: Any, length: Any, *, start: Any, step: Any, **named: Any) -> TensorValue:
    result = ctx.template(node.meta["val"])
    return _counted(ctx, result, start, step)


@lowers("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def arange(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> TensorValue:
    result = ctx.template(node.meta["val"])
    start, step = (0 if len(args) == 1 else args[0]), (args[2] if len(args) > 2 else 1)
    if result.kernel_type.is_integer:
        # converted before they are added up, as in eager mode
        start, step = (int(n) if isinstance(n, float) else n for n in (start, step))
    if is_integer(start) and is_integer(step):
        return _counted(ctx, result, start, step)
    kind, axis = result.kernel_type, axes_of(result.size)[0]
    # eager counts in double precision (single on devices that lack it) and converts the sum
    single = kind is DType.f32 and not ctx.target_info(result.device).double_sums
    wide = DType.f32 if single else DType.f64
    first, stride = (ctx.operand(number, (), wide, result.device) for number in (start, step))
    steps = make("mul", cast(index_value(axis), wide), stride)
    return ctx.lazy(result, cast(make("add", first, steps), kind.compute))


def _counted(ctx: LoweringContext, result: TensorValue, start: Any, step: Any) -> TensorValue:
    """Integers from `start` on."""
    number = index_value(axes_of(result.size)[0] * step + start)
    return ctx.lazy(result, cast(number, result.kernel_type.compute))
