"""Scans by the threads of a block: each walks a segment of the row, then all take what came before theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.combine import merge_scan
from polyfuse_halide.library.device.reduce import Threads
from polyfuse_halide.library.math.arithmetic import Value, expr
from polyfuse_halide.library.passes import Body, define, reads

__all__ = ["DeviceScan"]


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
