"""Pooling over windows, forward and backward.

Small windows are written out element by element, so that pooling is a pointwise operator that fuses like any
other and vectorises along rows. Backwards gather: each input element sums what the windows over it pass back,
so there is nothing to lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as pairs
from typing import Any

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.conditions import all_of, at_least, between, less, masked
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.reduction import number, reduce
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.scatter import neutral
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike, maximum, minimum, product

LARGEST_WRITTEN_OUT = 25
"""Most window elements that are written out; larger windows are reduced by a loop."""


@dataclass(frozen=True)
class Windows:
    """Where windows lie, one entry a pooled dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of pooled dimensions."""
        return len(self.kernel)

    @property
    def count(self) -> int:
        """Elements in a window."""
        total = 1
        for k in self.kernel:
            total *= k
        return total

    def steps(self) -> Iterator[tuple[int, ...]]:
        """Positions in a window, row by row."""
        return pairs(*(range(k) for k in self.kernel))


def windows_of(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    """Windows from an operator's arguments, where one number may stand for all and no stride for the kernel
    size.
    """

    def spread(value: Any, default: tuple[int, ...]) -> tuple[int, ...]:
        listed = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        if not listed:
            return default
        if not all(isinstance(v, int) for v in listed):
            raise UnsupportedError("windows of a size that varies are pooled by eager")
        return listed * rank if len(listed) == 1 else listed

    sizes = spread(kernel, ())
    return Windows(
        sizes,
        spread(stride if stride is not None else (), sizes),
        spread(padding, (0,) * rank),
        spread(dilation, (1,) * rank),
    )


def _rank(node: Any) -> int:
    """Number of pooled dimensions, which the operator's name ends in."""
    name = str(node.target).split(".")[1]
    return int(name[name.index("pool") + 4])


def _placed(w: Windows, axes: Sequence[IndexLike], step: Sequence[IndexLike]) -> list[IndexLike]:
    """Input position of a step of the window of an output position, in the pooled dimensions."""
    return [
        a * s - p + t * d
        for a, s, p, t, d in zip(axes[-w.rank :], w.stride, w.padding, step, w.dilation, strict=True)
    ]


def _element(value: TensorValue, lead: Sequence[IndexLike], place: Sequence[IndexLike], other: Expr) -> Expr:
    """An element of the input, or `other` outside of it."""
    size = value.size[-len(place) :]
    inside = all_of(*(between(p, 0, n) for p, n in zip(place, size, strict=True)))
    return masked(
        value.at([*lead, *(0 if n == 1 else p for p, n in zip(place, size, strict=True))]), inside, other
    )


# Averages.


@lowers("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default", stores=(0,))
def avg_pool(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    w = windows_of(_rank(node), kernel, stride, padding)
    axes = axes_of(result.size)
    total = _window_sum(ctx, value, w, result, kind)
    shape = value.size[-w.rank :], result.size[-w.rank :]
    count = _divisor(w, axes[-w.rank :], *shape, count_include_pad, divisor_override, kind)
    return ctx.lazy(result, make("div" if kind.is_float else "trunc_div", total, count))


def _divisor(
    w: Windows,
    window: Sequence[IndexLike],
    size: Sequence[IndexLike],
    out_size: Sequence[IndexLike],
    include_pad: bool,
    override: int | None,
    kind: DType,
) -> Expr:
    """How many elements a window counts, one of those that exist."""
    if override:
        return number(override, kind)
    count = 1
    lengths: list[IndexLike] = []
    for d, (a, n, out) in enumerate(zip(window, size, out_size, strict=True)):
        beside = w.padding[d] if include_pad else 0
        last = (out - 1) * w.stride[d] - w.padding[d] + w.kernel[d] - (n + beside)
        if beside == w.padding[d] and isinstance(last, int) and last <= 0:
            # no window reaches beyond what is counted, whatever the index of those that do not exist
            count *= w.kernel[d]
            continue
        start = a * w.stride[d] - w.padding[d]
        first = start if include_pad else maximum(start, 0)
        lengths.append(minimum(start + w.kernel[d], n + beside) - first)
    # a product of numbers: one of indices would be multiplied out
    total = number(count, kind)
    for length in lengths:
        total = make("mul", total, number(length, kind))
    return total


def _window_sum(
    ctx: LoweringContext, value: TensorValue, w: Windows, result: TensorValue, kind: DType
) -> Expr:
    axes = axes_of(result.size)
    lead = axes[: -w.rank]
    zero = const(0, kind)
    if w.count <= LARGEST_WRITTEN_OUT:
        total = zero
        for k, step in enumerate(w.steps()):
            element = _element(value, lead, _placed(w, axes, step), zero)
            total = make("add", total, element) if k else element
        return total
    rank = result.rank

    def values(place: Sequence[IndexLike]) -> tuple[Expr, ...]:
        return (_element(value, place[: rank - w.rank], _placed(w, place[:rank], place[rank:]), zero),)

    target = ctx.temporary(kind, result.device, result.size)
    return reduce(ctx, "sum", (*result.size, *w.kernel), range(rank, rank + w.rank), values, (target,))[0]


@lowers("aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default", stores=(0,))
def avg_pool_backward(
    ctx: LoweringContext,
    node: Any,
    grad: TensorValue,
    value: TensorValue,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    w = windows_of(_rank(node), kernel, stride, padding)
    axes = axes_of(result.size)

    def counted(window: Sequence[IndexLike]) -> Expr:
        shape = result.size[-w.rank :], grad.size[-w.rank :]
        return _divisor(w, window, *shape, count_include_pad, divisor_override, kind)

    def element(window: Sequence[IndexLike]) -> Expr:
        return grad.at([*axes[: -w.rank], *window])

    def share(window: Sequence[IndexLike]) -> Expr:
        return make("div", element(window), counted(window))

    zero, usual = const(0.0, kind), counted(axes[-w.rank :])
    if usual.op == "const" and not ctx.eager_rounding:
        # all windows are equally large: one division does for all
        total = _sum_over_windows(w, axes, grad.size, element, zero)
        return ctx.lazy(result, make("div", total, usual))
    return ctx.lazy(result, _sum_over_windows(w, axes, grad.size, share, zero))


def _sum_over_windows(
    w: Windows, axes: Sequence[IndexLike], out_size: Sequence[IndexLike], passed: Any, zero: Expr
) -> Expr:
    """The sum of what the windows over an input position pass back to it."""
    reach = [-(-k // s) for k, s in zip(w.kernel, w.stride, strict=True)]
    terms = 1
    for r in reach:
        terms *= r
    if terms > LARGEST_WRITTEN_OUT or any(d != 1 for d in w.dilation):
        raise UnsupportedError("the backward of heavily overlapping windows is left to eager")
    total: Expr | None = None
    for back in pairs(*(range(r) for r in reach)):
        window: list[IndexLike] = []
        tests: list[Expr] = []
        for d, b in enumerate(back):
            shifted = axes[len(axes) - w.rank + d] + w.padding[d]
            n = out_size[len(out_size) - w.rank + d]
            place = shifted // w.stride[d] - b
            tests += [at_least(place, 0), less(place, n)]
            if (b + 1) * w.stride[d] > w.kernel[d]:
                # how far behind the window's start the position is
                tests.append(less(shifted % w.stride[d] + b * w.stride[d], w.kernel[d]))
            window.append(0 if n == 1 else place)
        term = masked(passed(window), all_of(*tests), zero)
        total = term if total is None else make("add", total, term)
    return zero if total is None else total


@dataclass(frozen=True)
class Bins:
    """Adaptive windows along one dimension: output `a` covers ``a * size // out`` up to
    ``ceil((a + 1) * size / out)``.
    """

    size: int
    out: int

    @property
    def is_even(self) -> bool:
        """Whether all windows are equal and none overlap."""
        return self.size % self.out == 0

    @property
    def longest(self) -> int:
        """Elements in the longest window."""
        return max(self.end(a) - self.start(a) for a in range(self.out))  # type: ignore[type-var, return-value]

    @property
    def overlap(self) -> int:
        """Most windows that one element is in."""
        return max(self.last(y) - self.first(y) + 1 for y in range(self.size))  # type: ignore[type-var, return-value]

    def start(self, a: IndexLike) -> IndexLike:
        """First element of window `a`."""
        return a * self.size // self.out

    def end(self, a: IndexLike) -> IndexLike:
        """One past the last element of window `a`."""
        return -(-(a + 1) * self.size // self.out)

    def first(self, y: IndexLike) -> IndexLike:
        """First window that element `y` is in."""
        return y * self.out // self.size

    def last(self, y: IndexLike) -> IndexLike:
        """Last window that element `y` is in."""
        return -(-(y + 1) * self.out // self.size) - 1


def _bins(size: Sequence[IndexLike], out: Sequence[IndexLike]) -> list[Bins]:
    found = [Bins(n, m) for n, m in zip(size, out, strict=True) if isinstance(n, int) and isinstance(m, int)]
    if len(found) != len(size):
        raise UnsupportedError("adaptive windows of a size that varies are pooled by eager")
    return found


def _even(bins: Sequence[Bins]) -> Windows:
    kernel = tuple(b.size // b.out for b in bins)
    return Windows(kernel, kernel, (0,) * len(bins), (1,) * len(bins))


def _binned(
    value: TensorValue,
    bins: Sequence[Bins],
    place: Sequence[IndexLike],
    step: Sequence[IndexLike],
    other: Expr,
) -> tuple[Expr, list[IndexLike]]:
    """Element `step` of the adaptive window at `place` (`other` past its end), and where that is."""
    rank = len(bins)
    at = [b.start(a) + t for b, a, t in zip(bins, place[-rank:], step, strict=True)]
    inside = all_of(*(less(p, b.end(a)) for p, b, a in zip(at, bins, place[-rank:], strict=True)))
    return masked(value.at([*place[:-rank], *at]), inside, other), at


@lowers("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default", stores=(0,))
def adaptive_avg_pool(ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None or not result.dtype.is_float:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    rank = len(output_size)
    bins = _bins(value.size[-rank:], result.size[-rank:])
    axes = axes_of(result.size)
    zero = const(0.0, kind)
    if all(b.is_even for b in bins):
        w = _even(bins)
        return ctx.lazy(result, make("div", _window_sum(ctx, value, w, result, kind), number(w.count, kind)))
    longest = [b.longest for b in bins]
    count = product(b.end(a) - b.start(a) for b, a in zip(bins, axes[-rank:], strict=True))
    if math.prod(longest) <= LARGEST_WRITTEN_OUT:
        total = zero
        for k, step in enumerate(pairs(*(range(n) for n in longest))):
            term, _ = _binned(value, bins, axes, step, zero)
            total = make("add", total, term) if k else term
    else:
        whole = result.rank
        target = ctx.temporary(kind, result.device, result.size)
        (total,) = reduce(
            ctx,
            "sum",
            (*result.size, *longest),
            range(whole, whole + rank),
            lambda p: (_binned(value, bins, p[:whole], p[whole:], zero)[0],),
            (target,),
        )
    return ctx.lazy(result, make("div", total, number(count, kind)))


@lowers(
    "aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default", stores=(0,)
)
def adaptive_avg_pool_backward(
    ctx: LoweringContext, node: Any, grad: TensorValue, value: TensorValue
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"averages of {result.torch_dtype} are computed by eager")
    kind = result.dtype.compute
    name = str(node.target)
    rank = int(name[name.index("pool") + 4])
    bins = _bins(result.size[-rank:], grad.size[-rank:])
    axes = axes_of(result.size)
    if all(b.is_even for b in bins):
        windows = [
            0 if b.out == 1 else a // (b.size // b.out) for a, b in zip(axes[-rank:], bins, strict=True)
        ]
        return ctx.lazy(
            result, make("div", grad.at([*axes[:-rank], *windows]), number(_even(bins).count, kind))
        )
    overlap = [b.overlap for b in bins]
    if math.prod(overlap) > LARGEST_WRITTEN_OUT:
        raise UnsupportedError("the backward of heavily overlapping adaptive windows is left to eager")
    total = zero = const(0.0, kind)
    for k, step in enumerate(pairs(*(range(n) for n in overlap))):
        windows = [b.first(a) + t for b, a, t in zip(bins, axes[-rank:], step, strict=True)]
        inside = all_of(
            *(less(w, b.last(a) + 1) for w, b, a in zip(windows, bins, axes[-rank:], strict=True))
        )
        count = product(b.end(w) - b.start(w) for b, w in zip(bins, windows, strict=True))
        term = masked(make("div", grad.at([*axes[:-rank], *windows]), number(count, kind)), inside, zero)
        total = make("add", total, term) if k else term
    return ctx.lazy(result, total)


# Maxima.


@lowers("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default", stores=(0,))
def max_pool(
    ctx: LoweringContext,
    node: Any,
    value: TensorValue,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue, TensorValue]:
    best, position = (ctx.template(f) for f in node.meta["val"])
    if best.dtype is None or value.dtype is DType.bool:
        raise UnsupportedError(f"maxima of {best.torch_dtype} windows are computed by eager")
    kind = best.dtype.compute
    w = windows_of(_rank(node), kernel, stride, padding, dilation)
    if w.count > LARGEST_WRITTEN_OUT:
        _reduced_max(ctx, value, w, best, position, kind)
        return best, position
    axes = axes_of(best.size)
    lead = axes[: -w.rank]
    lowest = neutral("max", kind)

    def taps() -> Iterator[tuple[Expr, Expr]]:
        for k, step in enumerate(w.steps()):
            place = _placed(w, axes, step)
            # where nothing is above the lowest number, the position is that of the first element there is
            known = place if k else [maximum(p, p % d) for p, d in zip(place, w.dilation, strict=True)]
            yield _element(value, lead, place, lowest), index_value(_flat(known, value.size))

    return _first_largest(ctx, taps(), best, position)


def _first_largest(
    ctx: LoweringContext, taps: Iterator[tuple[Expr, Expr]], best: TensorValue, position: TensorValue
) -> tuple[TensorValue, TensorValue]:
    """The largest of a few elements, each with its position, and the position of the first that large."""
    top, where_ = next(taps)
    for element, here in taps:
        # a NaN beats everything and is beaten by the next NaN, as eager mode has it
        wins = make("gt", element, top)
        if element.dtype.is_float:
            wins = make("bitwise_or", wins, make("isnan", element))
        where_ = where(wins, here, where_)
        top = make("maximum", top, element)
    return ctx.lazy(best, top), ctx.lazy(position, where_)


def _flat(place: Sequence[IndexLike], size: Sequence[IndexLike]) -> IndexLike:
    """The number of a position in its plane."""
    flat: IndexLike = 0
    for p, n in zip(place, size[-len(place) :], strict=True):
        flat = flat * n + p
    return flat


def _reduced_max(
    ctx: LoweringContext,
    value: TensorValue,
    w: Windows,
    best: TensorValue,
    position: TensorValue,
    kind: DType,
) -> None:
    rank = best.rank
    lowest = neutral("max", kind)
    beyond = const(2**62, DType.i64)

    def values(place: Sequence[IndexLike]) -> tuple[Expr, ...]:
        at = _placed(w, place[:rank], place[rank:])
        exists = all_of(*(between(p, 0, n) for p, n in zip(at, value.size[-w.rank :], strict=True)))
        # of equal numbers the smallest position is kept: none outside the tensor
        here = where(exists, index_value(_flat(at, value.size)), beyond)
        return _element(value, place[: rank - w.rank], at, lowest), here

    direct = best.dtype is kind
    target = best if direct else ctx.temporary(kind, best.device, best.size)
    parts = reduce(
        ctx, "argmax", (*best.size, *w.kernel), range(rank, rank + w.rank), values, (target, position)
    )
    if not direct:
        ctx.lazy(best, parts[0])


@lowers("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default", stores=(0,))
def adaptive_max_pool(
    ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any
) -> tuple[TensorValue, TensorValue]:
    best, position = (ctx.template(f) for f in node.meta["val"])
    if best.dtype is None or value.dtype is DType.bool:
        raise UnsupportedError(f"maxima of {best.torch_dtype} windows are computed by eager")
    kind = best.dtype.compute
    rank = len(output_size)
    bins = _bins(value.size[-rank:], best.size[-rank:])
    lowest = neutral("max", kind)
    longest = [b.longest for b in bins]
    whole = best.rank

    def tap(place: Sequence[IndexLike], step: Sequence[IndexLike]) -> tuple[Expr, Expr]:
        element, at = _binned(value, bins, place, step, lowest)
        return element, index_value(_flat(at, value.size))

    if math.prod(longest) <= LARGEST_WRITTEN_OUT:
        steps = pairs(*(range(n) for n in longest))
        return _first_largest(ctx, (tap(axes_of(best.size), step) for step in steps), best, position)
    target = best if best.dtype is kind else ctx.temporary(kind, best.device, best.size)
    parts = reduce(
        ctx,
        "argmax",
        (*best.size, *longest),
        range(whole, whole + rank),
        lambda p: tap(p[:whole], p[whole:]),
        (target, position),
    )
    return best if target is best else ctx.lazy(best, parts[0]), position


@lowers(
    "aten.max_pool2d_with_indices_backward.default",
    "aten.max_pool3d_with_indices_backward.default",
    stores=(0, 7),
)
def max_pool_backward(
    ctx: LoweringContext,
    node: Any,
    grad: TensorValue,
    value: TensorValue,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    indices: TensorValue,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    if result.dtype is None:
        raise UnsupportedError(f"maxima of {result.torch_dtype} windows are computed by eager")
    kind = result.dtype.compute
    w = windows_of(_rank(node), kernel, stride, padding, dilation)
    axes = axes_of(result.size)
    zero = const(0.0, kind)
    here = index_value(_flat(axes[-w.rank :], result.size))

    def passed(window: list[IndexLike]) -> Expr:
        place = [*axes[: -w.rank], *window]
        return where(make("eq", cast(indices.at(place), DType.i64), here), cast(grad.at(place), kind), zero)

    return ctx.lazy(result, _sum_over_windows(w, axes, grad.size, passed, zero))
