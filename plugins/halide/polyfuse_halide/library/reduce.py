"""Reductions and scans as Halide stages: in lanes along the loop, or one for each lane of a parallel axis.

The steps of a vector are scanned in registers: each takes what the one before it has, then what the one two
before has, then four. What came before the vector joins last, so that little waits for the vector before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.combine import Accumulator, Moments, merge_scan, scan_start
from polyfuse_halide.library.math.arithmetic import Value, expr
from polyfuse_halide.library.math.exponentials import exp_in_softmax
from polyfuse_halide.library.passes import Body, Pass, Reductions, define, flat_of, reads, total

__all__ = ["Reduction", "RowScan", "Tail"]

Tail = hl.TailStrategy.GuardWithIf


def _domain(extents: Sequence[Any], name: str) -> tuple[Any, list[Any]]:
    """A reduction domain and its variables, outermost first, as Halide counts from the inside."""
    domain = hl.RDom([(0, e) for e in reversed(extents)], name)
    found = [domain[k] for k in range(len(extents))]
    return domain, found[::-1]


@dataclass
class _Pass(Pass):
    """Some accumulators and moments that share one loop.

    `lanes` is the width of a vector along the last loop, 1 where lanes run elsewhere.
    """

    unroll: int = 1
    inner: list[Any] = field(default_factory=list, init=False)
    loops: list[Any] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.sizes[-1]
        if isinstance(last, int):
            while self.lanes > last:
                self.lanes //= 2
            self.unroll = max(1, min(self.unroll, last // max(self.lanes, 1)))
        if self.lanes < 4:
            self.lanes = 1
        self.func = hl.Func(self.name)
        if self.lanes == 1:
            self._plain()
        else:
            self._along()

    def _plain(self) -> None:
        define(self.func, self.axes, self._start())
        _, loops = _domain(self.sizes, f"{self.name}_r")
        state = reads(self.func, self.axes, self.count)
        before = expr(flat_of(loops, self.sizes))
        define(self.func, self.axes, self._take(state, self.body(*self.axes, *loops), before))
        self.loops = loops

    def _along(self) -> None:
        """Every lane is a reduction of its own; at the end they are merged."""
        wide, last, outer = self.lanes * self.unroll, self.sizes[-1], list(self.sizes[:-1])
        lane = hl.Var(f"{self.name}_lane")
        indices = [*self.axes, lane]
        part = hl.Func(f"{self.name}_part")
        define(part, indices, self._start())
        rounds, rest = last // wide, last % wide
        _, loops = _domain([*outer, rounds], f"{self.name}_r")
        before = expr(flat_of(loops, [*outer, rounds]))
        operands = self.body(*self.axes, *loops[:-1], loops[-1] * wide + lane)
        define(part, indices, self._take(reads(part, indices, self.count), operands, before))
        outer_count = total(outer)
        has_rest = not isinstance(rest, int) or rest > 0
        tail: list[Any] = []
        if has_rest:
            _, tail = _domain([*outer, rest], f"{self.name}_t")
            before = expr(flat_of(tail[:-1], outer) + outer_count * rounds)
            operands = self.body(*self.axes, *tail[:-1], tail[-1] + rounds * wide)
            spot = [*self.axes, tail[-1]]
            define(part, spot, self._take(reads(part, spot, self.count), operands, before))

        def count(at: Any) -> Value:
            whole = hl.i32(1) * outer_count * rounds
            return whole + hl.select(at < rest, hl.i32(1) * outer_count, hl.i32(0)) if has_rest else whole

        joined = hl.Func(f"{self.name}_lanes")
        copies = [
            (reads(part, [*self.axes, lane + self.lanes * u], self.count), count(lane + self.lanes * u))
            for u in range(self.unroll)
        ]
        define(joined, indices, self._tree(copies))

        def joint(at: int) -> Value:
            taken = count(hl.i32(at))
            for u in range(1, self.unroll):
                taken = taken + count(hl.i32(at + self.lanes * u))
            return taken

        singles = [(reads(joined, [*self.axes, hl.i32(k)], self.count), joint(k)) for k in range(self.lanes)]
        define(self.func, self.axes, self._tree(singles))
        self.inner = [part, joined]
        self._schedule_lanes(part, joined, lane, loops, tail)

    def _schedule_lanes(self, part: Any, joined: Any, lane: Any, loops: list[Any], tail: list[Any]) -> None:
        self.finish_lanes = (part, joined, lane, loops, tail)

    def at_each_point(self) -> None:
        """Schedule the parts inside the reduction's own innermost parallel loop."""
        if self.lanes == 1:
            return
        part, joined, lane, loops, tail = self.finish_lanes
        wide, lanes = self.lanes * self.unroll, self.lanes
        for func, extent in ((part, wide), (joined, lanes)):
            if self.axes:
                func.compute_at(self.func, self.axes[-1])
            else:
                func.compute_root()
            func.bound_extent(lane, extent).vectorize(lane, lanes)
        if self.unroll > 1:
            part.unroll(lane)
        inward = [lane, *reversed(loops)]
        stage = part.update(0).reorder(*inward).vectorize(lane, lanes)
        if self.unroll > 1:
            stage.unroll(lane)
        if tail:
            rest = self.sizes[-1] % wide
            if not isinstance(rest, int) or rest >= 4:
                part.update(1).allow_race_conditions().vectorize(tail[-1], lanes, Tail)
            else:
                part.update(1).unscheduled()


@dataclass
class Reduction(Reductions[_Pass]):
    """All reductions of one loop of the kernel, each pass in lanes along it or at each lane of an axis."""

    unroll: int = 1

    def make_pass(self, name: str, parts: Sequence[Accumulator | Moments], body: Body) -> _Pass:
        """A pass over the loop."""
        return _Pass(name, self.axes, self.sizes, parts, body, self.lanes, self.unroll)

    def softmax_exp(self, x: Value) -> Value:
        """e**x of what is not above zero."""
        return exp_in_softmax(x)


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
