"""Gradients of resampling: each input element sums what it was interpolated into; nothing is locked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.conditions import TRUE, all_of, between, masked
from polyfuse.lowering.reductions.reduction import number
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.upsampling import (
    LINEAR,
    NEAREST,
    Grid,
    grids_of,
    interpolated_in,
    nearest_rule,
    weight_of,
)
from polyfuse.lowering.shapes.windows import LARGEST_WRITTEN_OUT, added, looped
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, where
from polyfuse.symbolic import IndexLike
from polyfuse.torch_compat.tracing import fake

_CUBIC = "upsample_bicubic2d"


@lowers(*(f"aten.{name}_backward.default" for name in NEAREST), stores=(0,))
def nearest_backward(
    ctx: LoweringContext, node: Any, grad: TensorValue, output_size: Any, input_size: Any, *scales: Any
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    grids = grids_of(node, nearest_rule(node), result, grad, scales, DType.f32)
    return _gathered(ctx, grad, result, [_Copies(g) for g in grids])


@lowers(*(f"aten.{name}_backward.default" for name in (*LINEAR, _CUBIC)), stores=(0,))
def interpolated_backward(
    ctx: LoweringContext,
    node: Any,
    grad: TensorValue,
    output_size: Any,
    input_size: Any,
    align_corners: bool,
    *scales: Any,
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    rule, spread = ("cubic", _Cubics) if _CUBIC in str(node.target) else ("linear", _Hats)
    rule = "corners" if align_corners else rule
    grids = grids_of(node, rule, result, grad, scales, interpolated_in(result))
    return _gathered(ctx, grad, result, [spread(g) for g in grids])


class _Spread(ABC):
    """For each input position of a grid, the output positions it goes to: `count` of them from `start` on."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        size, out = grid.size, grid.out
        if not grid.is_static:
            raise UnsupportedError("no kernel computes gradients of grids of a size that varies")
        assert isinstance(size, int) and isinstance(out, int)
        with fake.real_tensors():
            inputs = torch.arange(size)
            firsts, lasts = self.used()
            first = torch.searchsorted(lasts, inputs)
            last = torch.searchsorted(firsts, inputs, right=True) - 1
            guess = inputs * out // size
            some = last >= first
            self.shift = int((first - guess)[some].min()) if bool(some.any()) else 0
            self.count = int((last - guess)[some].max()) - self.shift + 1 if bool(some.any()) else 0
        self._ratio = (out // math.gcd(size, out), size // math.gcd(size, out))

    @abstractmethod
    def used(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The first and the last input position that each output position uses."""

    def start(self, index: IndexLike) -> IndexLike:
        """The first output position that may use input position `index`."""
        return index * self._ratio[0] // self._ratio[1] + self.shift

    @abstractmethod
    def share(self, source: IndexLike, index: IndexLike) -> Expr | None:
        """The part of output position `source` that comes from input position `index`; None for all of it."""

    def uses(self, source: IndexLike, index: IndexLike) -> Expr:
        """Whether output position `source` exists and may use input position `index`."""
        return between(source, 0, self.grid.out)


class _Copies(_Spread):
    """Output positions that copy an input position."""

    def __init__(self, grid: Grid) -> None:
        if grid.factor:
            # every input position goes to a run of output positions, whatever their number
            self.grid, self.shift, self.count, self._ratio = grid, 0, grid.factor, (grid.factor, 1)
        else:
            super().__init__(grid)

    def used(self) -> tuple[torch.Tensor, torch.Tensor]:
        return (positions := self.grid.positions()), positions

    def share(self, source: IndexLike, index: IndexLike) -> None:
        return None

    def uses(self, source: IndexLike, index: IndexLike) -> Expr:
        exists = between(source, 0, self.grid.out)
        if self.grid.factor or self._is_even():
            return TRUE
        low = self.grid.base(source)
        found = low if isinstance(low, Expr) else index_value(low)
        return all_of(exists, make("eq", found, index_value(index)))

    def _is_even(self) -> bool:
        size, out = self.grid.size, self.grid.out
        assert isinstance(size, int) and isinstance(out, int)
        return out % size == 0 and self.count == out // size and self.shift == 0


class _Hats(_Spread):
    """Output positions that lie between an input position and its neighbours."""

    def used(self) -> tuple[torch.Tensor, torch.Tensor]:
        firsts = self.grid.positions()
        if self.grid.is_identity:
            return firsts, firsts
        assert isinstance(self.grid.size, int)
        # an output position that lies on an input position takes nothing from the next
        lasts = (firsts + 1).minimum(self.grid.coordinates().ceil().long())
        return firsts, lasts.clamp_max(self.grid.size - 1)

    def share(self, source: IndexLike, index: IndexLike) -> Expr | None:
        kind = self.grid.kind
        if self.grid.is_identity:
            return None
        low = self.grid.base(source)
        below = low if isinstance(low, Expr) else index_value(low)
        assert isinstance(self.grid.size, int)
        above = make("minimum", make("add", below, const(1, DType.i64)), const(self.grid.size - 1, DType.i64))
        weight = weight_of(self.grid, index_value(source), low)
        here, zero = index_value(index), const(0.0, kind)
        left = where(make("eq", below, here), make("sub", const(1.0, kind), weight), zero)
        return make("add", left, where(make("eq", above, here), weight, zero))


class _Cubics(_Spread):
    """Output positions that a cubic through four neighbours gives; those beyond an end are the one at the
    end."""

    def used(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(self.grid.size, int)
        low, last = self.grid.positions(), self.grid.size - 1
        return (low - 1).clamp(0, last), (low + 2).clamp(0, last)

    def share(self, source: IndexLike, index: IndexLike) -> Expr:
        kind, size = self.grid.kind, self.grid.size
        at = self.grid.coordinate(index_value(source))
        low = make("minimum", make("floor", at), number(size - 1, kind))
        beyond = make("sub", at, low)
        behind = make("minimum", make("maximum", beyond, const(0.0, kind)), const(1.0, kind))
        before = make("sub", const(1.0, kind), behind)
        first, here = cast(low, DType.i64), index_value(index)

        def weight(offset: int, value: Expr) -> Expr:
            there = make("add", first, const(offset, DType.i64))
            there = make("maximum", const(0, DType.i64), make("minimum", there, index_value(size - 1)))
            return where(make("eq", there, here), value, const(0.0, kind))

        return added(
            (
                weight(-1, _far(behind)),
                weight(0, _near(behind)),
                weight(1, _near(before)),
                weight(2, _far(before)),
            )
        )


_SHARPNESS = -0.75
"""The parameter of the cubic, as eager mode has it."""


def _near(distance: Expr) -> Expr:
    """The weight of one of the two middle neighbours, at a distance of zero to one."""
    return _polynomial(distance, _SHARPNESS + 2.0, -(_SHARPNESS + 3.0), 0.0, 1.0)


def _far(distance: Expr) -> Expr:
    """That of an outer neighbour, beyond a middle one whose distance is given."""
    a = _SHARPNESS
    # the polynomial of the distance plus one, multiplied out
    return _polynomial(distance, a, -2.0 * a, a, 0.0)


def _polynomial(x: Expr, *factors: float) -> Expr:
    """That of `x` with the factors of the highest power first."""
    value = const(factors[0], x.dtype)
    for factor in factors[1:]:
        value = make("add", make("mul", value, x), const(factor, x.dtype))
    return value


def _gathered(
    ctx: LoweringContext,
    grad: TensorValue,
    result: TensorValue,
    spreads: Sequence[_Spread],
) -> TensorValue:
    """Every element of `result` as the sum of what it contributed to.

    The last dimensions are written out, as many as are few terms; a loop adds those of the others, and reads
    all shares from tables, which are computed once and not for each element.
    """
    kind, rank = result.kernel_type.compute, len(spreads)
    counts = [s.count for s in spreads]
    if not all(counts):
        return ctx.lazy(result, const(0.0, kind))
    outer = next(d for d in range(rank + 1) if math.prod(counts[d:]) <= LARGEST_WRITTEN_OUT)
    shares = [_table(ctx, s, result) if outer else s.share for s in spreads]

    def element(index: Sequence[IndexLike], sources: Sequence[IndexLike]) -> Expr:
        inner = index[len(index) - rank :]
        exists = all_of(*(s.uses(at, p) for s, at, p in zip(spreads, sources, inner, strict=True)))
        safe = [0 if n == 1 else at for n, at in zip(grad.size[-rank:], sources, strict=True)]
        return masked(cast(grad.at([*index[: len(index) - rank], *safe]), kind), exists, const(0.0, kind))

    def weighted(d: int, found: Expr, index: Sequence[IndexLike], source: IndexLike) -> Expr:
        share = shares[d](source, index[len(index) - rank + d])
        return found if share is None else make("mul", found, share)

    def begin(d: int, index: Sequence[IndexLike]) -> IndexLike:
        return spreads[d].start(index[len(index) - rank + d])

    def written_out(index: Sequence[IndexLike], sources: list[IndexLike]) -> Expr:
        """The sum along the dimensions after those of `sources`, each of whose weights is a factor of it."""
        d = len(sources)
        if d == rank:
            return element(index, sources)
        steps = [begin(d, index) + t for t in range(counts[d])]
        return added(weighted(d, written_out(index, [*sources, at]), index, at) for at in steps)

    def term(index: Sequence[IndexLike], step: Sequence[IndexLike]) -> Expr:
        sources = [begin(d, index) + t for d, t in enumerate(step)]
        found = written_out(index, sources)
        for d, source in enumerate(sources):
            found = weighted(d, found, index, source)
        return found

    if not outer:
        return ctx.lazy(result, written_out(axes_of(result.size), []))
    return ctx.lazy(result, looped(ctx, result, counts[:outer], term))


def _table(
    ctx: LoweringContext, spread: _Spread, result: TensorValue
) -> Callable[[IndexLike, IndexLike], Expr | None]:
    """`share` of a spread, computed once for each input position and each output position that it goes to."""
    size = spread.grid.size
    like = ctx.temporary(spread.grid.kind, result.device, (spread.count, size))
    step, index = axes_of(like.size)
    share = spread.share(spread.start(index) + step, index)
    if share is None:
        return spread.share
    table = ctx.lazy(like, share)
    ctx.realize(table, "shares that all rows of an image read")

    def read(source: IndexLike, index: IndexLike) -> Expr:
        at = source - spread.start(index)
        return table.at([0 if spread.count == 1 else at, 0 if size == 1 else index])

    return read
