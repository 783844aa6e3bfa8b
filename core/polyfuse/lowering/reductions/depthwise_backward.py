"""Gradients of depthwise convolutions of images with channels last, and of lines, where libraries for CPUs
are slow at them.

The gradient of the weight is a sum over all pixels for each tap and channel. A library that has no code for a
window takes ten times as long as for the convolution itself, and so it does for the gradient of the image in
16 bits where the window moves by more than a pixel. Of lines, libraries take as long for the weight as if
products were added one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

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

_BACKWARD = "aten.convolution_backward.default"
_OF_IMAGES = OF_LINES + 1
_LIBRARY_TAPS = 9
"""Taps up to which the library's gradient of the weight is as fast as these loops."""
_READ_OFTEN = "read for each tap of a window"
_WIDEST = 8
"""Taps in a row that are added up side by side, in registers."""


@dataclass(frozen=True)
class DepthwiseBackward:
    """A call of `aten.convolution_backward` for a depthwise convolution of images or lines.

    Attributes:
        gradient, image, weight: what it reads.
        steps, before, gaps: stride, padding and dilation of each axis.
    """

    gradient: TensorValue
    image: TensorValue
    weight: TensorValue
    steps: tuple[int, ...]
    before: tuple[int, ...]
    gaps: tuple[int, ...]

    @property
    def window(self) -> tuple[int, ...]:
        """Taps along each axis."""
        return tuple(n for n in self.weight.size[2:] if isinstance(n, int))

    @property
    def sums_pay(self) -> bool:
        """Whether loops sum up the gradient of the weight in less time than the library."""
        return prod(self.window) > _LIBRARY_TAPS and self.window[-1] <= _WIDEST

    @property
    def flips(self) -> bool:
        """Whether the gradient of the image is a convolution with the flipped weight."""
        limits = zip(self.before, self.gaps, self.window, strict=True)
        return all(s == 1 for s in self.steps) and all(p <= gap * (n - 1) for p, gap, n in limits)

    @property
    def narrow(self) -> bool:
        """Whether its numbers have 16 bits."""
        return self.image.dtype is not DType.f32


def depthwise_backward(ctx: LoweringContext, args: Sequence[Any]) -> DepthwiseBackward | None:
    """The arguments of a call as a depthwise convolution of images with channels last; None if it is none, or
    if the device's first backend has no fast loops over such.
    """
    site = _site(ctx, args, _OF_IMAGES)
    last = site is not None and site.gradient.strides[1] == site.image.strides[1] == 1
    return site if last else None


def _site(ctx: LoweringContext, args: Sequence[Any], rank: int) -> DepthwiseBackward | None:
    """The arguments of a call as a depthwise convolution of so many dimensions, as above."""
    gradient, image, weight, _, strides, padding, dilation, transposed, _, groups, _ = args
    values, kind = (gradient, image, weight), image.dtype
    if transposed or image.rank != rank or ctx.settings.numerics == "eager":
        return None
    if kind not in TYPES or any(v.dtype is not kind for v in values):
        return None
    if image.size[1] != groups or weight.size[:2] != (groups, 1) or groups < FEWEST_CHANNELS:
        return None
    if not all(isinstance(n, int) for n in weight.size[2:]) or any(n == 0 for v in values for n in v.size):
        return None
    if not ctx.target_info(image.device).depthwise_loops:
        return None
    try:
        steps, before, gaps = (tuple(for_each_axis(v, rank - 2)) for v in (strides, padding, dilation))
    except Unavailable:
        return None
    return DepthwiseBackward(gradient, image, weight, steps, before, gaps)


def depthwise_gradients(
    ctx: LoweringContext, site: DepthwiseBackward, fakes: Sequence[Any], args: Sequence[Any]
) -> tuple[Any, Any, Any]:
    """The gradients that a call's mask asks for, those that the library is slow at by other means.

    Args:
        fakes: the traced values of the three results; None for those that are not asked for.
        args: of the call.
    """
    wanted = tuple(args[-1])
    own = (
        wanted[0] and fakes[0].stride(1) == 1 and (site.flips or site.narrow),
        wanted[1] and site.sums_pay,
    )
    rest = (wanted[0] and not own[0], wanted[1] and not own[1])
    made: list[Any] = [None, None, None]
    if any(rest):
        left = (*rest, wanted[2])
        asked = tuple(fake if is_left else None for fake, is_left in zip(fakes, left, strict=True))
        made = list(call(ctx, asked, _BACKWARD, (*args[:-1], left), template=True))
    elif wanted[2]:
        made[2] = sum_over(ctx, fakes[2], site.gradient, (0, 2, 3))
    if own[1]:
        for value in (site.gradient, site.image):
            ctx.realize(value, _READ_OFTEN)
        made[1] = _weight_gradient(ctx, site, fakes[1])
    if own[0]:
        made[0] = _flipped(ctx, site, fakes[0]) if site.flips else _in_f32(ctx, site, fakes[0], args)
    return made[0], made[1], made[2]


def line_gradients(
    ctx: LoweringContext, fakes: Sequence[Any], args: Sequence[Any]
) -> tuple[Any, Any, Any] | None:
    """The gradients of a depthwise convolution of lines that a call's mask asks for; None if it is none, or
    if the device's first backend has no fast loops over such.

    Args:
        fakes, args: as for `depthwise_gradients`.
    """
    site = _site(ctx, args, OF_LINES)
    if site is None or not 1 < site.window[0] <= MOST_TAPS_OF_LINES:
        return None
    length = site.gradient.size[2]
    if isinstance(length, int) and length < SHORTEST_LINE:
        return None
    image, weight, bias = args[-1]
    made: list[Any] = [None, None, None]
    if image and site.flips and fakes[0].stride(2) == 1:
        made[0] = _flipped(ctx, site, fakes[0])
    elif image:
        rest = (*args[:-1], (True, False, False))
        made[0] = call(ctx, (fakes[0], None, None), _BACKWARD, rest, template=True)[0]
    if weight:
        lines = [_along(ctx, value) for value in (site.gradient, site.image)]
        made[1] = _weight_gradient(ctx, replace(site, gradient=lines[0], image=lines[1]), fakes[1])
    if bias:
        made[2] = sum_over(ctx, fakes[2], site.gradient, (0, 2))
    return made[0], made[1], made[2]


def _along(ctx: LoweringContext, value: TensorValue) -> TensorValue:
    """A value whose lines lie in memory one number behind the other."""
    if value.strides[2] != 1:
        target = ctx.temporary(value.kernel_type, value.device, value.size)
        value = ctx.lazy(target, value.at(axes_of(value.size)))
    ctx.realize(value, _READ_OFTEN)
    return value


def _weight_gradient(ctx: LoweringContext, site: DepthwiseBackward, fake: Any) -> TensorValue:
    """The sums of gradient times image over all pixels, in f32. Taps in a row are added up side by side, so
    that the gradient is read once for all of them.
    """
    gradient, image = site.gradient, site.image
    *down, across = site.window
    batch, channels, *extents = gradient.size
    sums: list[TensorValue] = []
    for tap in range(across):
        one = ctx.temporary(DType.f32, image.device, (*down, channels))

        def values(p: Sequence[IndexLike], tap: int = tap) -> tuple[Expr, ...]:
            lines, (channel, number, *pixel) = p[: len(down)], p[len(down) :]
            moves = zip(pixel, (*lines, tap), site.steps, site.gaps, site.before, strict=True)
            at = [i * step + (t * gap - before) for i, t, step, gap, before in moves]
            change, number_there = gradient.at((number, channel, *pixel)), image.at((number, channel, *at))
            term = make("mul", cast(change, DType.f32), cast(number_there, DType.f32))
            # beyond the border nothing counts, not even an infinite gradient
            return (masked(term, exists(at, image.size[2:]), const(0.0, DType.f32)),)

        space = (*down, channels, batch, *extents)
        (total,) = reduce(ctx, "sum", space, range(len(down) + 1, len(space)), values, (one,))
        one.body = None if one.view is not None else total
        sums.append(one)
    result = ctx.template(fake)
    channel, _, *lines, column = axes_of(result.size)
    body = sums[-1].at((*lines, channel))
    for tap in range(across - 2, -1, -1):
        here = make("eq", index_value(column), const(tap, DType.i64))
        body = where(here, sums[tap].at((*lines, channel)), body)
    return ctx.lazy(result, body)


def _flipped(ctx: LoweringContext, site: DepthwiseBackward, fake: Any) -> TensorValue:
    """The gradient of the image as a convolution of the result's gradient with the flipped weight."""
    weight = site.weight
    flipped = ctx.temporary(weight.kernel_type, weight.device, weight.size)
    channel, _, *taps = axes_of(flipped.size)
    ctx.lazy(flipped, weight.at((channel, 0, *(n - 1 - t for n, t in zip(site.window, taps, strict=True)))))
    reach = zip(site.before, site.gaps, site.window, strict=True)
    margin = tuple(gap * (n - 1) - before for before, gap, n in reach)
    zeros = (0,) * len(margin)
    args = (site.gradient, flipped, None, site.steps, margin, site.gaps, False, zeros, weight.size[0])
    found: TensorValue = call(ctx, fake, "aten.convolution.default", args, template=True)
    return found


def _in_f32(ctx: LoweringContext, site: DepthwiseBackward, fake: Any, args: Sequence[Any]) -> TensorValue:
    """The library's gradient of the image, computed in f32 and rounded."""
    wide = tuple(_widened(v) for v in (site.gradient, site.image, site.weight))
    rest = (*wide, *args[3:-1], (True, False, False))
    found = call(ctx, (fake.float(), None, None), _BACKWARD, rest, template=True)[0]
    return ctx.lazy(fake, found.at(axes_of(found.size)))


def _widened(value: TensorValue) -> TensorValue:
    """A value in f32, laid out as it is."""
    wide = TensorValue(DType.f32, torch.float32, value.device, value.size, value.stride)
    wide.body, wide.origins = cast(value.at(axes_of(value.size)), DType.f32), value.origins
    return wide
