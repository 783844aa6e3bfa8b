"""Gradients of depthwise convolutions along one axis: a sum over all lines for each tap, and a convolution
with the weight turned around. Libraries take as long for the weight as if products were added one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import exists, masked
from polyfuse.lowering.reductions.depthwise import (
    FEWEST_CHANNELS,
    MOST_TAPS_OF_LINES,
    OF_LINES,
    SHORTEST_LINE,
    TYPES,
)
from polyfuse.lowering.reductions.gemm_loops import Unavailable, for_each_axis
from polyfuse.lowering.reductions.reduction import reduce, sum_over
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike


@dataclass(frozen=True)
class _Lines:
    """A call of `aten.convolution_backward` for a depthwise convolution of lines.

    Attributes:
        gradient, image, weight: what it reads.
        step, before, gap: stride, padding and dilation.
    """

    gradient: TensorValue
    image: TensorValue
    weight: TensorValue
    step: int
    before: int
    gap: int

    @property
    def taps(self) -> int:
        """The size of the window."""
        count = self.weight.size[2]
        assert isinstance(count, int)
        return count

    @property
    def turns(self) -> bool:
        """Whether the gradient of the image is a convolution with the weight turned around."""
        return self.step == 1 and self.before <= self.gap * (self.taps - 1)


def line_gradients(
    ctx: LoweringContext, fakes: Sequence[Any], args: Sequence[Any]
) -> tuple[Any, Any, Any] | None:
    """The gradients of a depthwise convolution of lines that a call's mask asks for; None if it is none, or
    if the device's first backend has no fast loops over such.

    Args:
        fakes: the traced values of the three results; None for those that are not asked for.
        args: of the call.
    """
    lines = _lines(ctx, args)
    if lines is None:
        return None
    image, weight, bias = args[-1]
    made: list[Any] = [None, None, None]
    if image:
        made[0] = _of_image(ctx, lines, fakes[0], args)
    if weight:
        made[1] = _of_weight(ctx, lines, fakes[1])
    if bias:
        made[2] = sum_over(ctx, fakes[2], lines.gradient, (0, 2))
    return made[0], made[1], made[2]


def _lines(ctx: LoweringContext, args: Sequence[Any]) -> _Lines | None:
    gradient, image, weight, _, strides, padding, dilation, transposed, _, groups, _ = args
    values, kind = (gradient, image, weight), image.dtype
    if transposed or image.rank != OF_LINES or ctx.settings.numerics == "eager":
        return None
    if kind not in TYPES or any(v.dtype is not kind for v in values):
        return None
    if image.size[1] != groups or weight.size[:2] != (groups, 1) or groups < FEWEST_CHANNELS:
        return None
    taps, length = weight.size[2], gradient.size[2]
    if not isinstance(taps, int) or not 1 < taps <= MOST_TAPS_OF_LINES or any(n == 0 for n in image.size):
        return None
    if isinstance(length, int) and length < SHORTEST_LINE:
        return None
    if not ctx.target_info(image.device).depthwise_loops:
        return None
    try:
        (step,), (before,), (gap,) = (for_each_axis(v, 1) for v in (strides, padding, dilation))
    except Unavailable:
        return None
    return _Lines(gradient, image, weight, step, before, gap)


def _along(ctx: LoweringContext, value: TensorValue, reason: str) -> TensorValue:
    """A value whose lines lie in memory one number behind the other."""
    if value.strides[2] != 1:
        value = ctx.lazy(
            ctx.temporary(value.kernel_type, value.device, value.size), value.at(axes_of(value.size))
        )
    ctx.realize(value, reason)
    return value


def _of_weight(ctx: LoweringContext, lines: _Lines, fake: Any) -> TensorValue:
    """The sums of gradient times image over all lines, in f32, for each tap."""
    gradient, image = (_along(ctx, v, "read for each tap of a window") for v in (lines.gradient, lines.image))
    batch, channels, length = gradient.size
    sums: list[TensorValue] = []
    for tap in range(lines.taps):
        one = ctx.temporary(DType.f32, image.device, (channels,))

        def values(p: Sequence[IndexLike], tap: int = tap) -> tuple[Expr, ...]:
            channel, number, x = p
            at = x * lines.step + (tap * lines.gap - lines.before)
            change, pixel = gradient.at((number, channel, x)), image.at((number, channel, at))
            term = make("mul", cast(change, DType.f32), cast(pixel, DType.f32))
            # beyond the border nothing counts, not even an infinite gradient
            return (masked(term, exists([at], image.size[2:]), const(0.0, DType.f32)),)

        (total,) = reduce(ctx, "sum", (channels, batch, length), (1, 2), values, (one,))
        one.body = None if one.view is not None else total
        sums.append(one)
    result = ctx.template(fake)
    channel, _, column = axes_of(result.size)
    body = sums[-1].at((channel,))
    for tap in range(lines.taps - 2, -1, -1):
        body = where(make("eq", index_value(column), const(tap, DType.i64)), sums[tap].at((channel,)), body)
    return ctx.lazy(result, body)


def _of_image(ctx: LoweringContext, lines: _Lines, fake: Any, args: Sequence[Any]) -> TensorValue:
    """The gradient of the image: the result's gradient convolved with the weight turned around; with strides
    the library's.
    """
    if not lines.turns or fake.stride(2) != 1:
        rest = (*args[:-1], (True, False, False))
        found: TensorValue = call(
            ctx, (fake, None, None), "aten.convolution_backward.default", rest, template=True
        )[0]
        return found
    weight = lines.weight
    turned = ctx.temporary(weight.kernel_type, weight.device, weight.size)
    channel, _, column = axes_of(turned.size)
    ctx.lazy(turned, weight.at((channel, 0, lines.taps - 1 - column)))
    margin = (lines.gap * (lines.taps - 1) - lines.before,)
    args = (lines.gradient, turned, None, (1,), margin, (lines.gap,), False, (0,), weight.size[0])
    convolved: TensorValue = call(ctx, fake, "aten.convolution.default", args, template=True)
    return convolved
