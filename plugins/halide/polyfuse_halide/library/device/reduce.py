"""Reductions and scans by the threads of a block. Of a reduction each takes every so many values, then they
are merged in a tree; of a scan each walks a segment of the row, then all take what came before theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.combine import Accumulator, Moments, merge_scan
from polyfuse_halide.library.math.arithmetic import Value, expr
from polyfuse_halide.library.math.exponentials import exp, exp_mid
from polyfuse_halide.library.math.polynomials import is_wide, single
from polyfuse_halide.library.passes import Body, Pass, Reductions, State, define, reads, total

__all__ = ["DevicePass", "DeviceReduction", "DeviceScan", "Threads", "coordinates_of"]

Threads = Callable[[Any, Any, Any], Any]
"""Says which loops are threads: of a stage, its lane or None, and its point. Gives the innermost one."""
_MERGED = 8
"""States that one thread merges in one step of the tree."""


def coordinates_of(number: Any, sizes: Sequence[Any]) -> list[Any]:
    """The point of a number: `passes.flat_of` backwards."""
    found: list[Any] = []
    for size in reversed(sizes[1:]):
        found.append(number % size)
        number = number // size
    return [*([number] if sizes else []), *reversed(found)]


@dataclass
class DevicePass(Pass):
    """Some accumulators and moments that share one loop, whose values `lanes` threads take in turns."""

    stages: list[tuple[Any, Any, int]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = total(self.sizes)
        self._lanes()

    def _lanes(self) -> None:
        lane = hl.Var(f"{self.name}_lane")
        alone = self.lanes == 1
        # a thread adds up in registers, and leaves the sum where others see it
        func = hl.Func(self.name if alone else f"{self.name}_own")
        spot = [*self.axes] if alone else [*self.axes, lane]
        define(func, spot, self._start())
        rounds = (self.steps + self.lanes - 1) // self.lanes
        domain = hl.RDom([(0, rounds)], f"{self.name}_r")
        step = domain[0]
        number = step if alone else step * self.lanes + lane
        if not alone and (not isinstance(self.steps, int) or self.steps % self.lanes):
            domain.where(number < self.steps)
            number = hl.min(number, expr(self.steps) - 1)
        operands = self.body(*self.axes, *coordinates_of(expr(number), self.sizes))
        define(func, spot, self._take(reads(func, spot, self.count), operands, expr(step)))
        self.step, self.rounds, self.own = step, rounds, func
        if alone:
            self.func = func
            return
        part = hl.Func(f"{self.name}_part")
        define(part, spot, reads(func, spot, self.count))
        self.stages.append((part, lane, self.lanes))
        func = part
        width, each = self.lanes, 1
        while width > 1:
            merged = min(_MERGED, width)
            width //= merged
            following = hl.Func(f"{self.name}_{width}" if width > 1 else self.name)
            spot = [*self.axes, lane] if width > 1 else list(self.axes)
            states: list[State] = []
            for k in range(merged):
                at = (lane if width > 1 else hl.i32(0)) + width * k
                states.append(
                    (reads(func, [*self.axes, at], self.count), self._had(at, each, width * merged))
                )
            define(following, spot, self._tree(states))
            self.stages.append((following, lane if width > 1 else None, width))
            func, each = following, each * merged
        self.func = func

    def _had(self, at: Any, each: int, width: int) -> Value:
        """How many values the state of a lane has taken, when `each` lanes a `width` apart were merged."""
        count: Any = hl.i32(0)
        for k in range(each):
            lane = at + width * k
            count = count + hl.max((expr(self.steps) - lane + (self.lanes - 1)) // self.lanes, 0)
        return count

    def schedule(self, consumer: Any, level: Any, threads: Threads | None) -> None:
        """Compute all stages at a loop of the launch; without `threads`, by one thread."""
        point = self.axes[-1]
        for func, lane, width in self.stages:
            func.compute_at(consumer, level)
            if lane is not None:
                func.bound(lane, 0, width).reorder(lane, point)
            inner = threads(func, lane, point) if threads is not None else None
            if func is self.stages[0][0] and inner is not None:
                self.own.compute_at(func, inner)
        if threads is None:
            self.own.compute_at(consumer, level)
        update = self.own.update(0)
        if isinstance(self.rounds, int):
            for count in (4, 2):
                if self.rounds % count == 0 and self.rounds > count:
                    update.unroll(self.step, count)
                    break


@dataclass
class DeviceReduction(Reductions[DevicePass]):
    """All reductions of one loop of the kernel, by the threads of a block."""

    def make_pass(self, name: str, parts: Sequence[Accumulator | Moments], body: Body) -> DevicePass:
        """A pass over the loop."""
        return DevicePass(name, self.axes, self.sizes, parts, body, self.lanes)

    def softmax_exp(self, x: Value) -> Value:
        """e**x for a sum in which something is one: what is tiny beside that may be anything tiny."""
        return exp(x) if is_wide(x) else exp_mid(hl.select(x < single(-87.0), single(-87.0), x))

    def schedule(self, consumer: Any, level: Any, threads: Threads | None) -> None:
        """Compute everything at a loop of the launch."""
        for one in self.passes:
            one.schedule(consumer, level, threads)


@dataclass
class DeviceScan:
    """An inclusive scan along a row; called with axes and a position, it gives the values there."""

    name: str
    kind: str
    axes: Sequence[Any]
    extent: Any
    body: Body
    lanes: int
    stages: list[tuple[Any, Any, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        step = hl.Var(f"{self.name}_step")
        values = list(self.body(*self.axes, expr(step)))
        self.count = len(values)
        self.raw = hl.Func(f"{self.name}_raw")
        define(self.raw, [*self.axes, step], values)
        self.step = step
        # an odd segment keeps threads that walk side by side in different banks of memory
        self.each = (self.extent + self.lanes - 1) // self.lanes
        if self.lanes > 1:
            self.each = self.each + 1 - self.each % 2
        lane, item = hl.Var(f"{self.name}_lane"), hl.Var(f"{self.name}_item")
        self.lane, self.item = lane, item
        run = hl.Func(f"{self.name}_run")
        last = expr(self.extent) - 1
        at = hl.min(lane * self.each + item, last)
        define(run, [*self.axes, lane, item], reads(self.raw, [*self.axes, at], self.count))
        rest = self.each - 1 if isinstance(self.each, int) else hl.max(self.each - 1, 0)
        self.walk = hl.RDom([(1, rest)], f"{self.name}_r")[0]
        now = [*self.axes, lane, self.walk]
        before = reads(run, [*self.axes, lane, self.walk - 1], self.count)
        define(run, now, merge_scan(self.kind, before, reads(run, now, self.count)))
        self.run = run
        ends = hl.Func(f"{self.name}_ends")
        define(ends, [*self.axes, lane], reads(run, [*self.axes, lane, expr(self.each) - 1], self.count))
        self.sums = [ends]
        away = 1
        while away < self.lanes:
            back = reads(self.sums[-1], [*self.axes, hl.max(lane - away, 0)], self.count)
            here = reads(self.sums[-1], [*self.axes, lane], self.count)
            following = hl.Func(f"{self.name}_{away}")
            joined = merge_scan(self.kind, back, here)
            define(
                following,
                [*self.axes, lane],
                [hl.select(lane >= away, j, h) for j, h in zip(joined, here)],
            )
            self.sums.append(following)
            away *= 2

    def __call__(self, *where: Any) -> list[Value]:
        axes, position = where[:-1], expr(where[-1])
        if self.lanes == 1:
            return reads(self.run, [*axes, hl.i32(0), position], self.count)
        lane, item = position // self.each, position % self.each
        here = reads(self.run, [*axes, lane, item], self.count)
        before = reads(self.sums[-1], [*axes, hl.max(lane - 1, 0)], self.count)
        whole = merge_scan(self.kind, before, here)
        return [hl.select(lane == 0, h, w) for h, w in zip(here, whole)]

    def schedule(self, consumer: Any, level: Any, threads: Threads | None) -> None:
        """Compute everything at a loop of the launch."""
        self.run.compute_at(consumer, level)
        if threads is None:
            return
        point = self.axes[-1]
        self.raw.compute_at(consumer, level)
        rounds, inside = hl.Var("rounds"), hl.Var("inside")
        self.raw.split(self.step, rounds, inside, self.lanes, hl.TailStrategy.GuardWithIf)
        self.raw.reorder(rounds, inside, point)
        threads(self.raw, inside, point)
        self.run.bound(self.lane, 0, self.lanes).bound(self.item, 0, self.each)
        self.run.reorder_storage(self.item, self.lane, *reversed(self.axes))
        self.run.reorder(self.item, self.lane, point)
        threads(self.run, self.lane, point)
        update = self.run.update(0)
        update.reorder(self.walk, self.lane, point)
        threads(update, self.lane, point)
        for func in self.sums:
            func.compute_at(consumer, level).bound(self.lane, 0, self.lanes)
            func.reorder(self.lane, point)
            threads(func, self.lane, point)
