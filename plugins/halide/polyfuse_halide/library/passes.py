"""What reductions on the CPU and on devices share: stages, loops, passes and their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import halide as hl

from polyfuse_halide.library.combine import Accumulator, Moments
from polyfuse_halide.library.contraction import strict
from polyfuse_halide.library.math.arithmetic import Value, expr
from polyfuse_halide.library.math.convert import convert

__all__ = ["Body", "Pass", "Reductions", "State", "define", "flat_of", "reads", "total"]

Body = Callable[..., Sequence[Value]]
State = tuple[list[Value], Value]
"""The values of all accumulators and moments of a pass, and how many values of the loop they have taken."""


def define(func: Any, indices: Sequence[Any], values: Sequence[Value]) -> None:
    """Define a stage at some indices, outermost first, as one value or several."""
    found = tuple(map(strict, values))
    func[tuple(reversed(indices))] = found[0] if len(found) == 1 else hl.Tuple(found)


def reads(func: Any, indices: Sequence[Any], count: int) -> list[Value]:
    """The values of a stage at some indices, outermost first."""
    found = func[tuple(reversed(indices))]
    return [expr(found)] if count == 1 else [expr(found[k]) for k in range(count)]


def total(sizes: Sequence[Any]) -> Any:
    """How many points some loops have."""
    found: Any = 1
    for size in sizes:
        found = size if isinstance(found, int) and found == 1 else found * size
    return found


def flat_of(indices: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The row-major index of a point of some loops, outermost first."""
    found: Any = 0
    for index, size in zip(indices, sizes):
        found = index if isinstance(found, int) and found == 0 else found * size + index
    return found


@dataclass
class Pass:
    """Accumulators and moments that share one loop; a kind of pass says how it runs, and sets `func`."""

    name: str
    axes: Sequence[Any]
    sizes: Sequence[Any]
    parts: Sequence[Accumulator | Moments]
    body: Body
    lanes: int
    func: Any = field(default=None, init=False)
    slices: list[tuple[int, int]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        at = 0
        for part in self.parts:
            width = part.width if isinstance(part, Accumulator) else 2
            self.slices.append((at, at + width))
            at += width
        self.count = at

    def _start(self) -> list[Value]:
        return [value for part in self.parts for value in part.start()]

    def _take(self, state: Sequence[Value], operands: Sequence[Value], before: Value) -> list[Value]:
        found: list[Value] = []
        at = 0
        for part, (low, high) in zip(self.parts, self.slices):
            if isinstance(part, Moments):
                found += part.take(state[low:high], operands[at], before)
                at += 1
            else:
                found += part.merge(state[low:high], part.lift(operands[at : at + part.width]))
                at += part.width
        return found

    def _merge(self, left: Sequence[Value], count: Value, right: Sequence[Value], other: Value) -> State:
        found: list[Value] = []
        for part, (low, high) in zip(self.parts, self.slices):
            if isinstance(part, Moments):
                a, b = convert(count, "i32", part.dtype), convert(other, "i32", part.dtype)
                found += part.merge(left[low:high], a, right[low:high], b)[0]
            else:
                found += part.merge(left[low:high], right[low:high])
        return found, count + other

    def _tree(self, states: list[State]) -> list[Value]:
        """The values of all states merged in pairs, those in pairs, and so on."""
        while len(states) > 1:
            half = (len(states) + 1) // 2
            merged = [self._merge(*states[k], *states[k + half]) for k in range(len(states) - half)]
            states = merged + states[len(states) - half : half]
        return states[0][0]


P = TypeVar("P", bound=Pass)


@dataclass
class Reductions(ABC, Generic[P]):
    """All reductions of one loop of the kernel; called with a point, it gives the results of each.

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
    passes: list[P] = field(default_factory=list, init=False)

    @abstractmethod
    def make_pass(self, name: str, parts: Sequence[Accumulator | Moments], body: Body) -> P:
        """A pass over the loop."""

    @abstractmethod
    def softmax_exp(self, x: Value) -> Value:
        """e**x of what is not above zero: what a value adds to the sum of a softmax."""

    def __post_init__(self) -> None:
        widths = [2 if k in ("argmin", "argmax") else 1 for k, _, _ in self.kinds]
        starts = [sum(widths[:k]) for k in range(len(widths))]
        first: list[Accumulator | Moments] = []
        for kind, dtype, position in self.kinds:
            if kind == "welford":
                first.append(Moments(dtype))
            else:
                first.append(Accumulator("max" if kind == "online_softmax" else kind, dtype, position))
        main = self.make_pass(self.name, first, self.body)
        self.passes.append(main)
        softmax = [k for k, (kind, _, _) in enumerate(self.kinds) if kind == "online_softmax"]
        if not softmax:
            return

        def shifted(*indices: Any) -> list[Value]:
            operands = self.body(*indices)
            largest = reads(main.func, indices[: len(self.axes)], main.count)
            return [self.softmax_exp(operands[starts[k]] - largest[main.slices[k][0]]) for k in softmax]

        sums: list[Accumulator | Moments] = [Accumulator("sum", self.kinds[k][1]) for k in softmax]
        self.passes.append(self.make_pass(f"{self.name}_sum", sums, shifted))

    def __call__(self, *axes: Any) -> list[list[Value]]:
        """The results of each reduction at a point."""
        main = self.passes[0]
        state = reads(main.func, axes, main.count)
        found: list[list[Value]] = []
        at = 0
        for (kind, dtype, _), (low, high) in zip(self.kinds, main.slices):
            results = state[low:high]
            if kind == "welford":
                results = [*results, convert(hl.i32(1) * total(self.sizes), "i32", dtype)]
            elif kind == "online_softmax":
                results = [*results, reads(self.passes[1].func, axes, self.passes[1].count)[at]]
                at += 1
            found.append(results)
        return found
