"""Points side by side that read the same memory, done together.

The window of a depthwise convolution or a pooling overlaps that of the next pixel, and both have the same
weights: one after the other, a pixel loads all of them for one multiplication each. Written side by side,
statement by statement, what several of them load is loaded once and stays in a register.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Load, Store
from polyfuse.symbolic import IndexLike, axis, axis_name, coefficient, substitute
from polyfuse_cpp.cuts.copying import Copying
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.tiling import Plan

_COUNTS = (4, 2)
"""Points that may be done together, the best first: registers hold what so many share."""

_LESS = 0.8
"""The part of the loads along the axis that is left where doing points together pays."""

_FEWER = 0.7
"""The part of all loads that is left there, weights included, which each point would load: windows of three
at every second pixel share a quarter, and asking for so many new lines ahead costs more."""

_MOST_STATEMENTS = 400
"""Statements beyond which compiling them costs more than they save."""

_UNCACHED = 1 << 20
"""Bytes of an argument that the second cache does not hold."""

_STEPS = 8
"""Steps of the lanes in which memory answers."""


@dataclass(frozen=True)
class Neighbours:
    """Points of a kernel that are done together.

    Attributes:
        axis: the axis along which they lie, as the kernel names it.
        count: how many.
        size: of that axis.
        facts, plan: of the kernel that does them; its axis counts where the first of them may be.
        ahead: loads of points further along the axis that nothing before them reads: the machine follows a
            line of memory that is read on and on, but not a few of many pixels at a time.
    """

    axis: str
    count: int
    size: IndexLike
    facts: Facts
    plan: Plan
    ahead: tuple[Load, ...]


def neighbours(facts: Facts, plan: Plan, name: str) -> Neighbours | None:
    """The points along an axis outside the lanes that share what they load; None where few do."""
    if not plan.lane or any(s.mode != "set" for s in facts.statements if isinstance(s, Store)):
        return None
    count = next((n for n in _COUNTS if n <= facts.hints[name]), 0)
    if count * len(facts.statements) > _MOST_STATEMENTS or not count:
        return None
    made = Facts.of(_together(facts.kernel, name, facts.sizes[name], count))
    if any(left > most * count for left, most in _left(facts, made, name)):
        return None
    return Neighbours(name, count, facts.sizes[name], made, plan, tuple(_ahead(made, plan, name, count)))


def _ahead(facts: Facts, plan: Plan, name: str, count: int) -> Iterator[Load]:
    """Loads that are new along the axis, so far ahead that memory answers in time."""
    loads = {
        (s.buffer, s.index): s
        for s in facts.statements
        if isinstance(s, Load) and not s.indirect and s.mask is None
    }
    groups = -(-_STEPS * plan.lanes // facts.hints[plan.lane])
    for (buffer, index), stmt in loads.items():
        step = coefficient(index, name)
        if not isinstance(step, int) or not step or facts.bytes_of(buffer) < _UNCACHED:
            continue
        others = (coefficient(index, a) for a in plan.axes[:-1] if a != name)
        steps = [step * count, *(by for by in others if by)]
        if not any((buffer, index + by) in loads for by in steps):
            yield replace(stmt, index=index + step * count * groups)


def _left(facts: Facts, made: Facts, name: str) -> Iterator[tuple[int, float]]:
    """Loads of points done together, and the most that pay for each: of other memory at each position of an
    axis, and of all.
    """

    def counted(of: Facts, axes: set[str]) -> int:
        return sum(isinstance(s, Load) and axes <= set(of.depends_of(s)) for s in of.statements)

    yield counted(made, {name}), _LESS * counted(facts, {name})
    yield counted(made, set()), _FEWER * counted(facts, set())


def _together(kernel: Kernel, name: str, size: IndexLike, count: int) -> Kernel:
    """The kernel of so many points: each statement for all of them before the next one."""
    own = axis(name, size - (count - 1))
    copying, names = Copying(), [dict[str, str]() for _ in range(count)]
    for stmt in kernel.sections[0].body:
        for at, known in enumerate(names):
            copying.copy(stmt, known, partial(_moved, name=name, to=own + at))
    axes = tuple(own if axis_name(a) == name else a for a in kernel.axes)
    return replace(kernel, axes=axes, sections=(Section(False, tuple(copying.body)),))


def _moved(index: IndexLike, name: str, to: IndexLike) -> IndexLike:
    return substitute(index, {name: to})
