"""Scans along rows, a vector of steps at a time.

The steps of a vector are scanned in registers: each takes what the one before it has, then what the one two
before has, then four. What came before the vector joins last, so that little waits for the vector before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.combine import merge_scan, scan_start
from polyfuse_halide.library.math.arithmetic import Value, expr
from polyfuse_halide.library.passes import Body, define, reads

__all__ = ["RowScan"]


@dataclass
class RowScan:
    """A scan along the last of `variables`, of `extent` steps, in vectors of `lanes` lanes."""

    name: str
    kind: str
    variables: Sequence[Any]
    extent: Any
    lanes: int
    scan: Any = field(init=False)
    parts: list[Any] = field(default_factory=list, init=False)

    def define(self, body: Body) -> Callable[..., list[Value]]:
        """Define the stages: vectors scanned one by one, and the scan, which begins before the row."""
        axes, width = list(self.variables[:-1]), self.lanes
        values = list(body(*self.variables))
        self.count = len(values)
        self.scan = hl.Func(self.name)
        define(self.scan, self.variables, [hl.undef(v.type()) for v in values])
        # a whole vector before the row, so that all of the row's begin where lines do
        self.start = hl.RDom([(-width, width)], f"{self.name}_s")[0]
        define(self.scan, [*axes, self.start], scan_start(self.kind, values))
        self.lane, self.vector = hl.Var(f"{self.name}_lane"), hl.Var(f"{self.name}_vector")
        spot = [*axes, self.vector, self.lane]
        self._stage("of", spot, list(body(*axes, self.vector * width + self.lane)))
        away = 1
        while away < width:
            self._stage(str(away), spot, self._joined(spot, away))
            away *= 2
        whole, rest = self.extent // width, self.extent % width
        domain = hl.RDom([(0, width), (0, whole)], f"{self.name}_r")
        self.inside, self.outside = domain[0], domain[1]
        here = reads(self.parts[-1], [*axes, self.outside, self.inside], self.count)
        self._follow(axes, self.outside * width + self.inside, self.outside * width - 1, here)
        self.has_rest = not isinstance(rest, int) or rest > 0
        if self.has_rest:
            step = hl.RDom([(0, rest)], f"{self.name}_t")[0] + whole * width
            self._follow(axes, step, step - 1, list(body(*axes, step)))
        return lambda *where: reads(self.scan, where, self.count)

    def _stage(self, name: str, spot: Sequence[Any], values: Sequence[Value]) -> None:
        func = hl.Func(f"{self.name}_{name}")
        define(func, spot, values)
        self.parts.append(func)

    def _joined(self, spot: Sequence[Any], away: int) -> list[Value]:
        """Each step of a vector with the one that is so many before it, where there is one."""
        *rest, lane = spot
        here = reads(self.parts[-1], spot, self.count)
        before = reads(self.parts[-1], [*rest, hl.max(lane - away, 0)], self.count)
        joined = merge_scan(self.kind, before, here)
        return [hl.select(expr(lane) >= away, j, h) for j, h in zip(joined, here, strict=True)]

    def _follow(self, axes: Sequence[Any], step: Any, before: Any, values: Sequence[Value]) -> None:
        """Combine the values of a step with the scan of the steps before it."""
        had = reads(self.scan, [*axes, before], self.count)
        define(self.scan, [*axes, step], merge_scan(self.kind, had, values))

    def schedule(self, func: Any = None, level: Any = None) -> None:
        """Compute the scan at a loop of another stage, or before all of it."""
        if func is None:
            self.scan.compute_root()
        else:
            self.scan.compute_at(func, level)
        self.scan.update(0).vectorize(self.start)
        self.scan.update(1).allow_race_conditions().vectorize(self.inside)
        if self.has_rest:
            self.scan.update(2).unscheduled()
        for part in self.parts:
            part.compute_at(self.scan, self.outside).bound_extent(self.lane, self.lanes).vectorize(
                self.lane, self.lanes
            )
