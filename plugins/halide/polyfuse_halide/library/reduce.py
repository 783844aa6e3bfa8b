"""Reductions as Halide stages: in lanes along the loop, or one for each lane of a parallel axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import halide as hl

from polyfuse_halide.library.arithmetic import Value, expr
from polyfuse_halide.library.combine import Fold, Moments
from polyfuse_halide.library.convert import convert
from polyfuse_halide.library.exponentials import exp

__all__ = ["Body", "Reduction", "Tail", "define", "reads"]

Body = Callable[..., Sequence[Value]]
Tail = hl.TailStrategy.GuardWithIf


def define(func: Any, place: Sequence[Any], values: Sequence[Value]) -> None:
    """Say what a stage is at a place, outermost first: one value or several."""
    func[tuple(reversed(place))] = values[0] if len(values) == 1 else hl.Tuple(tuple(values))


def reads(func: Any, place: Sequence[Any], count: int) -> list[Value]:
    """The values of a stage at a place, outermost first."""
    found = func[tuple(reversed(place))]
    return [expr(found)] if count == 1 else [expr(found[k]) for k in range(count)]


def _product(values: Sequence[Any]) -> Any:
    found: Any = 1
    for value in values:
        found = value if isinstance(found, int) and found == 1 else found * value
    return found


def _flat(places: Sequence[Any], sizes: Sequence[Any]) -> Any:
    found: Any = 0
    for place, size in zip(places, sizes):
        found = place if isinstance(found, int) and found == 0 else found * size + place
    return found


def _domain(extents: Sequence[Any], name: str) -> tuple[Any, list[Any]]:
    """A reduction domain and its variables, outermost first, as Halide counts from the inside."""
    domain = hl.RDom([(0, e) for e in reversed(extents)], name)
    found = [domain[k] for k in range(len(extents))]
    return domain, found[::-1]


@dataclass
class _Pass:
    """Some folds and moments that share one loop.

    `lanes` is the width of a vector along the last loop, 1 where lanes run elsewhere.
    """

    name: str
    axes: Sequence[Any]
    sizes: Sequence[Any]
    parts: Sequence[Fold | Moments]
    body: Body
    lanes: int
    unroll: int
    func: Any = None
    inner: list[Any] = field(default_factory=list)
    loops: list[Any] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        at = 0
        for part in self.parts:
            width = part.width if isinstance(part, Fold) else 2
            self.places.append((at, at + width))
            at += width
        self.count = at
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

    def _start(self) -> list[Value]:
        return [value for part in self.parts for value in part.start()]

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

    def _merge(
        self, left: Sequence[Value], count: Value, right: Sequence[Value], other: Value
    ) -> tuple[list[Value], Value]:
        found: list[Value] = []
        for part, (low, high) in zip(self.parts, self.places):
            if isinstance(part, Moments):
                kind = part.dtype
                a, b = convert(count, "i32", kind), convert(other, "i32", kind)
                found += part.merge(left[low:high], a, right[low:high], b)[0]
            else:
                found += part.merge(left[low:high], right[low:high])
        return found, count + other

    def _plain(self) -> None:
        define(self.func, self.axes, self._start())
        _, loops = _domain(self.sizes, f"{self.name}_r")
        state = reads(self.func, self.axes, self.count)
        before = expr(_flat(loops, self.sizes))
        define(self.func, self.axes, self._take(state, self.body(*self.axes, *loops), before))
        self.loops = loops

    def _along(self) -> None:
        """Every lane is a reduction of its own; at the end they are merged."""
        wide, last, outer = self.lanes * self.unroll, self.sizes[-1], list(self.sizes[:-1])
        lane = hl.Var(f"{self.name}_lane")
        place = [*self.axes, lane]
        part = hl.Func(f"{self.name}_part")
        define(part, place, self._start())
        rounds, rest = last // wide, last % wide
        _, loops = _domain([*outer, rounds], f"{self.name}_r")
        before = expr(_flat(loops, [*outer, rounds]))
        operands = self.body(*self.axes, *loops[:-1], loops[-1] * wide + lane)
        define(part, place, self._take(reads(part, place, self.count), operands, before))
        outer_count = _product(outer)
        has_rest = not isinstance(rest, int) or rest > 0
        tail: list[Any] = []
        if has_rest:
            _, tail = _domain([*outer, rest], f"{self.name}_t")
            before = expr(_flat(tail[:-1], outer) + outer_count * rounds)
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
        define(joined, place, self._tree(copies)[0])

        def joint(at: int) -> Value:
            total = count(hl.i32(at))
            for u in range(1, self.unroll):
                total = total + count(hl.i32(at + self.lanes * u))
            return total

        singles = [(reads(joined, [*self.axes, hl.i32(k)], self.count), joint(k)) for k in range(self.lanes)]
        define(self.func, self.axes, self._tree(singles)[0])
        self.inner = [part, joined]
        self._schedule_lanes(part, joined, lane, loops, tail)

    def _tree(self, states: list[tuple[list[Value], Value]]) -> tuple[list[Value], Value]:
        while len(states) > 1:
            half = (len(states) + 1) // 2
            merged = [self._merge(*states[k], *states[k + half]) for k in range(len(states) - half)]
            states = merged + states[len(states) - half : half]
        return states[0]

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
class Reduction:
    """All reductions of one loop of the kernel.

    Args:
        kinds: (kind, type, type of positions) of each, in order.
        body: their operands, one after the other, at a point of the axes and loops.
    """

    name: str
    axes: Sequence[Any]
    sizes: Sequence[Any]
    kinds: Sequence[tuple[str, str, str]]
    body: Body
    lanes: int
    unroll: int
    passes: list[_Pass] = field(default_factory=list)

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
            return [exp(operands[starts[k]] - largest[main.places[k][0]]) for k in softmax]

        sums: list[Fold | Moments] = [Fold("sum", self.kinds[k][1]) for k in softmax]
        self.passes.append(self._pass(f"{self.name}_sum", sums, shifted))

    def _pass(self, name: str, parts: Sequence[Fold | Moments], body: Body) -> _Pass:
        return _Pass(name, self.axes, self.sizes, parts, body, self.lanes, self.unroll)

    def __call__(self, *axes: Any) -> list[list[Value]]:
        """The results of each reduction at a point."""
        main = self.passes[0]
        state = reads(main.func, axes, main.count)
        found: list[list[Value]] = []
        at = 0
        for (kind, dtype, _), (low, high) in zip(self.kinds, main.places):
            results = state[low:high]
            if kind == "welford":
                total = hl.i32(1) * _product(self.sizes)
                results = [*results, convert(total, "i32", dtype)]
            elif kind == "online_softmax":
                results = [*results, reads(self.passes[1].func, axes, self.passes[1].count)[at]]
                at += 1
            found.append(results)
        return found

    @property
    def funcs(self) -> list[Any]:
        """The stages that hold results."""
        return [p.func for p in self.passes]
