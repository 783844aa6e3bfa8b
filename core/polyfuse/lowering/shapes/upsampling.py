"""Resampling on a grid: nearest neighbour and linear interpolation.

Where an output position comes from is computed as eager mode computes it, in single precision. With known
sizes the positions are compared with a rational formula when the graph is lowered; where both agree
everywhere the address is that formula and needs no arithmetic on data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const, index_value
from polyfuse.ir.types import DType
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.gather import AnyIndex, fetch
from polyfuse.lowering.reductions.reduction import number
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.shapes.windows import added
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, scalar
from polyfuse.symbolic import IndexLike, is_equal, maximum, minimum
from polyfuse.torch_compat.tracing import fake

LONGEST_CHECKED = 1 << 16
"""Longest dimension whose positions are compared with the rational formula."""


@dataclass(frozen=True)
class Grid:
    """One resampled dimension.

    Attributes:
        size, out: elements before and after.
        scale: what the caller asked for, if they did.
        rule: ``"nearest"``, ``"exact"``, ``"linear"``, ``"cubic"`` (positions may lie outside), ``"corners"``
            (linear or cubic, the corners aligned).
        kind: the type that positions are computed in.
    """

    size: IndexLike
    out: IndexLike
    scale: float | None
    rule: str
    kind: DType

    @property
    def is_static(self) -> bool:
        """Whether both sizes are known and small enough to look at every position."""
        return isinstance(self.size, int) and isinstance(self.out, int) and self.out <= LONGEST_CHECKED

    @property
    def is_identity(self) -> bool:
        """Whether every element stays where it is: of equal sizes no scale is asked for."""
        return is_equal(self.size, self.out)

    @property
    def factor(self) -> int:
        """How many times each element is repeated, where that is certain; else zero."""
        if self.rule == "nearest":
            for factor in (1, 2, 4, 8):
                # powers of two divide exactly in any precision
                exact = self.scale is None or self.scale == factor or factor == 1
                if exact and is_equal(self.out, self.size * factor):
                    return factor
        return 0

    def step(self) -> Expr:
        """Input elements for one output element."""
        if self.rule == "corners":
            if isinstance(self.out, int) and self.out <= 1:
                return const(0.0, self.kind)
            return make("div", number(self.size - 1, self.kind), number(self.out - 1, self.kind))
        if self.scale is not None and self.scale > 0:
            return scalar(1.0 / self.scale, self.kind)
        return make("div", number(self.size, self.kind), number(self.out, self.kind))

    def coordinate(self, index: Expr) -> Expr:
        """Where the output position `index` (i64) lies among the input positions: a number that is below zero
        under the rule ``"cubic"`` alone."""
        step = self.step()
        if self.rule == "exact":
            middle = make("add", cast(index, DType.f64), const(0.5, DType.f64))
            return cast(make("mul", middle, cast(step, DType.f64)), self.kind)
        at = cast(index, self.kind)
        if self.rule in ("nearest", "corners"):
            return make("mul", at, step)
        half = const(0.5, self.kind)
        inside = make("sub", make("mul", step, make("add", at, half)), half)
        return inside if self.rule == "cubic" else make("maximum", inside, const(0.0, self.kind))

    def base(self, index: IndexLike) -> AnyIndex:
        """The input position at or before the output position."""
        exact = self._rational(index)
        if exact is not None:
            return exact
        found = cast(make("floor", self.coordinate(index_value(index))), DType.i64)
        return make("minimum", found, index_value(self.size - 1))

    def positions(self) -> torch.Tensor:
        """`base` of every output position, as eager mode finds it; sizes must be known."""
        assert isinstance(self.size, int)
        with fake.real_tensors():
            return self.coordinates().floor().long().clamp_max(self.size - 1)

    def coordinates(self) -> torch.Tensor:
        """`coordinate` of every output position; sizes must be known."""
        assert isinstance(self.size, int) and isinstance(self.out, int)
        with fake.real_tensors():
            at = torch.arange(self.out, dtype=self.kind.torch)
            step = torch.tensor(_step_value(self), dtype=self.kind.torch)
            if self.rule == "exact":
                return ((at.double() + 0.5) * step.double()).to(self.kind.torch)
            if self.rule == "linear":
                return (step * (at + 0.5) - 0.5).clamp_min(0)
            return step * (at + 0.5) - 0.5 if self.rule == "cubic" else at * step

    def _rational(self, index: IndexLike) -> IndexLike | None:
        """`base` by integer arithmetic, where that gives what eager mode finds."""
        size, out = self.size, self.out
        if self.is_identity:
            return index
        if size == 1:
            return 0
        if self.is_static:
            formula = _formula(self)
            assert isinstance(size, int) and isinstance(out, int)
            known = self.positions().tolist()
            if all(formula(i) == at for i, at in enumerate(known)):
                return formula(index)
            return None
        return index // self.factor if self.factor else None


def _step_value(grid: Grid) -> float:
    assert isinstance(grid.size, int) and isinstance(grid.out, int)
    if grid.rule == "corners":
        return (grid.size - 1) / (grid.out - 1) if grid.out > 1 else 0.0
    return 1.0 / grid.scale if grid.scale is not None and grid.scale > 0 else grid.size / grid.out


def _formula(grid: Grid) -> Callable[[IndexLike], IndexLike]:
    """The exact position, were the scale the ratio of the sizes."""
    size, out = grid.size, grid.out
    assert isinstance(size, int) and isinstance(out, int)
    ratios = {
        "corners": (size - 1, 0, max(out - 1, 1)),
        "nearest": (size, 0, out),
        "exact": (2 * size, size, 2 * out),
        "linear": (2 * size, size - out, 2 * out),
    }
    common = math.gcd(*ratios[grid.rule])
    a, b, c = (n // common for n in ratios[grid.rule])

    def position(i: IndexLike) -> IndexLike:
        index = (i * a + b) // c
        if grid.rule == "corners":
            return index
        return minimum(maximum(index, 0) if grid.rule == "linear" else index, size - 1)

    return position


def grids_of(
    node: Any, rule: str, value: TensorValue, result: TensorValue, scales: Sequence[Any], kind: DType
) -> list[Grid]:
    """The resampled dimensions, which are as many as the operator's name says."""
    rank = int(next(c for c in str(node.target) if c.isdigit()))
    if not all(scale is None or isinstance(scale, (int, float)) for scale in scales):
        raise UnsupportedError("no kernel resamples by a scale that varies")
    given = [None if s is None else float(s) for s in (*scales, *[None] * (rank - len(scales)))]
    sizes = zip(value.size[-rank:], result.size[-rank:], given, strict=True)
    return [Grid(n, m, scale, rule, kind) for n, m, scale in sizes]


def _read(
    ctx: LoweringContext, value: TensorValue, lead: Sequence[IndexLike], indices: Sequence[AnyIndex]
) -> Expr:
    """An element; through memory only where the index is computed from data."""
    known = [p for p in indices if not isinstance(p, Expr)]
    if len(known) == len(indices):
        return value.at(
            [*lead, *(0 if n == 1 else p for n, p in zip(value.size[len(lead) :], known, strict=True))]
        )
    return fetch(ctx, value, [*lead, *indices])


# Nearest neighbour.

NEAREST = tuple(f"{stem}{n}d" for stem in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3))


@lowers(*(f"aten.{name}.default" for name in NEAREST), passes=4)
def nearest(
    ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any, *scales: Any
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    axes = axes_of(result.size)
    grids = grids_of(node, nearest_rule(node), value, result, scales, DType.f32)
    rank = len(grids)
    indices = [grid.base(a) for grid, a in zip(grids, axes[-rank:], strict=True)]
    return ctx.lazy(result, _read(ctx, value, axes[:-rank], indices))


def nearest_rule(node: Any) -> str:
    return "exact" if "exact" in str(node.target) else "nearest"


# Linear interpolation.

LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")


@lowers(*(f"aten.{name}.default" for name in LINEAR), stores=(0,))
def linear(
    ctx: LoweringContext, node: Any, value: TensorValue, output_size: Any, align_corners: bool, *scales: Any
) -> TensorValue:
    result = ctx.template(node.meta["val"])
    axes = axes_of(result.size)
    rule = "corners" if align_corners else "linear"
    grids = grids_of(node, rule, value, result, scales, interpolated_in(result))
    rank = len(grids)
    sides = [_neighbours(grid, a) for grid, a in zip(grids, axes[-rank:], strict=True)]

    def blend(d: int, indices: list[AnyIndex]) -> Expr:
        if d == rank:
            return _read(ctx, value, axes[:-rank], indices)
        parts = [(blend(d + 1, [*indices, index]), weight) for index, weight in sides[d]]
        return added(part if weight is None else make("mul", weight, part) for part, weight in parts)

    return ctx.lazy(result, blend(0, []))


def interpolated_in(result: TensorValue) -> DType:
    if result.dtype is None or not result.dtype.is_float:
        raise UnsupportedError(f"eager mode interpolates {result.torch_dtype} in fixed point")
    return result.dtype.compute


def _neighbours(grid: Grid, index: IndexLike) -> list[tuple[AnyIndex, Expr | None]]:
    """The two input positions around an output position, and their weights; one alone has none."""
    low = grid.base(index)
    if grid.size == 1 or grid.is_identity:
        return [(low, None)]
    weight = weight_of(grid, index_value(index), low)
    if isinstance(low, Expr):
        high: AnyIndex = make("minimum", make("add", low, const(1, DType.i64)), index_value(grid.size - 1))
    else:
        high = minimum(low + 1, grid.size - 1)
    return [(low, make("sub", const(1.0, grid.kind), weight)), (high, weight)]


def weight_of(grid: Grid, index: Expr, low: AnyIndex) -> Expr:
    """How far the output position is from input position `low` to the next, from zero to one."""
    start = low if isinstance(low, Expr) else index_value(low)
    return make("sub", grid.coordinate(index), cast(start, grid.kind))
