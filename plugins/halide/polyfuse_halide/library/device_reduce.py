"""Reductions by the threads of a block: each takes every so many values, then they are merged in a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.arithmetic import Value, expr, from_bits, moved_up
from polyfuse_halide.library.combine import Fold, Moments
from polyfuse_halide.library.convert import convert
from polyfuse_halide.library.exponentials import exp, exp_core, exp_reduce
from polyfuse_halide.library.polynomials import is_wide, single
from polyfuse_halide.library.reduce import Body, define, reads

__all__ = ["DevicePass", "DeviceReduction", "Threads", "flat_of", "places_of"]

Threads = Callable[[Any, Any, Any], Any]
"""Says which loops are threads: of a stage, its lane or None, and its point. Gives the innermost one."""
_MERGED = 8
"""States that one thread merges in one step of the tree."""


def flat_of(places: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The number of a point of some loops, outermost first."""
    found: Any = 0
    for place, size in zip(places, sizes):
        found = place if isinstance(found, int) and found == 0 else found * size + place
    return found


def places_of(number: Any, sizes: Sequence[Any]) -> list[Any]:
    """The point of a number: `flat_of` backwards."""
    found: list[Any] = []
    for size in reversed(sizes[1:]):
        found.append(number % size)
        number = number // size
    return [*([number] if sizes else []), *reversed(found)]


def total(sizes: Sequence[Any]) -> Any:
    """How many points some loops have."""
    found: Any = 1
    for size in sizes:
        found = size if isinstance(found, int) and found == 1 else found * size
    return found


def _share(x: Value) -> Value:
    """e**x of what is not above zero, for a sum in which something is one: what is tiny beside that may be
    anything tiny.
    """
    if is_wide(x):
        return exp(x)
    r, _, n = exp_reduce(hl.select(x < single(-87.0), single(-87.0), x))
    return exp_core(r) * from_bits(hl.Float(32), moved_up(n + hl.i32(127), 23))


@dataclass
class DevicePass:
    """Some folds and moments that share one loop."""

    name: str
    axes: Sequence[Any]
    sizes: Sequence[Any]
    parts: Sequence[Fold | Moments]
    body: Body
    lanes: int
    func: Any = None
    places: list[tuple[int, int]] = field(default_factory=list)
    stages: list[tuple[Any, Any, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        at = 0
        for part in self.parts:
            width = part.width if isinstance(part, Fold) else 2
            self.places.append((at, at + width))
            at += width
        self.count = at
        self.steps = total(self.sizes)
        self._lanes()

    def _lanes(self) -> None:
        lane = hl.Var(f"{self.name}_lane")
        alone = self.lanes == 1
        # a thread adds up in registers, and leaves the sum where others see it
        func = hl.Func(self.name if alone else f"{self.name}_own")
        spot = [*self.axes] if alone else [*self.axes, lane]
        define(func, spot, [value for part in self.parts for value in part.start()])
        rounds = (self.steps + self.lanes - 1) // self.lanes
        domain = hl.RDom([(0, rounds)], f"{self.name}_r")
        step = domain[0]
        number = step if alone else step * self.lanes + lane
        if not alone and (not isinstance(self.steps, int) or self.steps % self.lanes):
            domain.where(number < self.steps)
            number = hl.min(number, expr(self.steps) - 1)
        operands = self.body(*self.axes, *places_of(expr(number), self.sizes))
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
            states = []
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

    def _take(self, state: Sequence[Value], operands: Sequence[Value], before: Value) -> list[Value]:
        found: list[Value] = []
        at = 0
        for part, (low, high) in zip(self.parts, self.places):
            if isinstance(part, Moments):
                found += part.take(state[low:high], operands[at], before)
                at += 1
            else:
                found += part.merge(state[low:high], part.lift(operands[at : at + part.width]))
                at += part.width
        return found

    def _tree(self, states: list[tuple[list[Value], Value]]) -> list[Value]:
        while len(states) > 1:
            half = (len(states) + 1) // 2
            joined = [self._merge(*states[k], *states[k + half]) for k in range(len(states) - half)]
            states = joined + states[len(states) - half : half]
        return states[0][0]

    def _merge(
        self, left: Sequence[Value], count: Value, right: Sequence[Value], other: Value
    ) -> tuple[list[Value], Value]:
        found: list[Value] = []
        for part, (low, high) in zip(self.parts, self.places):
            if isinstance(part, Moments):
                a, b = convert(count, "i32", part.dtype), convert(other, "i32", part.dtype)
                found += part.merge(left[low:high], a, right[low:high], b)[0]
            else:
                found += part.merge(left[low:high], right[low:high])
        return found, count + other

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
class DeviceReduction:
    """All reductions of one loop of the kernel; called with a point, it gives the results of each."""

    name: str
    axes: Sequence[Any]
    sizes: Sequence[Any]
    kinds: Sequence[tuple[str, str, str]]
    body: Body
    lanes: int
    passes: list[DevicePass] = field(default_factory=list)

    def __post_init__(self) -> None:
        widths = [2 if k in ("argmin", "argmax") else 1 for k, _, _ in self.kinds]
        starts = [sum(widths[:k]) for k in range(len(widths))]
        first: list[Fold | Moments] = []
        for kind, dtype, position in self.kinds:
            if kind == "welford":
                first.append(Moments(dtype))
            else:
                first.append(Fold("max" if kind == "online_softmax" else kind, dtype, position))
        main = self._pass(self.name, first, self.body)
        self.passes.append(main)
        softmax = [k for k, (kind, _, _) in enumerate(self.kinds) if kind == "online_softmax"]
        if not softmax:
            return

        def shifted(*places: Any) -> list[Value]:
            operands = self.body(*places)
            largest = reads(main.func, places[: len(self.axes)], main.count)
            return [_share(operands[starts[k]] - largest[main.places[k][0]]) for k in softmax]

        sums: list[Fold | Moments] = [Fold("sum", self.kinds[k][1]) for k in softmax]
        self.passes.append(self._pass(f"{self.name}_sum", sums, shifted))

    def _pass(self, name: str, parts: Sequence[Fold | Moments], body: Body) -> DevicePass:
        return DevicePass(name, self.axes, self.sizes, parts, body, self.lanes)

    def __call__(self, *axes: Any) -> list[list[Value]]:
        main = self.passes[0]
        state = reads(main.func, axes, main.count)
        found: list[list[Value]] = []
        at = 0
        for (kind, dtype, _), (low, high) in zip(self.kinds, main.places):
            results = state[low:high]
            if kind == "welford":
                results = [*results, convert(hl.i32(1) * total(self.sizes), "i32", dtype)]
            elif kind == "online_softmax":
                results = [*results, reads(self.passes[1].func, axes, self.passes[1].count)[at]]
                at += 1
            found.append(results)
        return found

    def schedule(self, consumer: Any, level: Any, threads: Threads | None) -> None:
        """Compute everything at a loop of the launch."""
        for one in self.passes:
            one.schedule(consumer, level, threads)
