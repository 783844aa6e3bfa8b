"""Phases: copies of a kernel's statements, side by side, for points that take turns in memory.

A lane axis that indices divide by a small number is cut into as many phases: points with one remainder each.

The gradient of a pooling with stride 2 reads ``in[(p + 1) // 2]`` and asks ``(p + 1) % 2 < 1``; resampling,
interleaved channels and repeated elements do the like. Lane by lane that is a window of memory under a mask
that flickers. With ``p = 2*q + r`` the lanes run along q: each of the two phases reads memory as it lies,
questions about remainders are answered here, and what all phases store is woven together (`weave`).

A short axis whose elements lie side by side, such as the colours of a picture, becomes phases too: lanes run
along the axis outside it, and every phase reads or writes each so many elements of one piece of memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import Load, Statement, Store, indices, statement, with_index, with_names
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, atoms, axis, bounds, coefficient, free_axes, substitute
from polyfuse_cpp.facts import Facts, analyse
from polyfuse_cpp.memory.address import static_multiple
from polyfuse_cpp.memory.copies import moved_as_bits
from polyfuse_cpp.tiling import Plan, choose_plan

__all__ = ["MOST_PHASES", "planned"]

MOST_PHASES = 4
"""Phases into which an axis is cut at most: each is a copy of the kernel's statements."""

_MOST_STATEMENTS = 400
"""Statements of all phases together, beyond which compiling them costs more than they save."""


def planned(kernel: Kernel, lanes: int, lane_at: int = 0, unroll: int = 0) -> tuple[Kernel, Facts, Plan]:
    """The kernel as it is run, in phases where that pays, and what is known of it; the choices are those of
    `tiling.choose_plan`.
    """
    kernel = moved_as_bits(kernel)
    facts = analyse(kernel)
    side = _side_by_side(kernel, facts, lanes) if lanes > 1 and not lane_at else None
    if side is not None:
        apart, place = side
        its_facts = analyse(apart)
        return apart, its_facts, choose_plan(apart, its_facts, lanes, place, unroll)
    plan = choose_plan(kernel, facts, lanes, lane_at, unroll)
    phased = _in_phases(kernel, facts, plan)
    if phased is not None:
        its_facts = analyse(phased)
        its_plan = choose_plan(phased, its_facts, lanes, facts.axes.index(plan.lane) + 1, unroll)
        if not its_plan.tile:
            return phased, its_facts, its_plan
    return kernel, facts, plan


def _in_phases(kernel: Kernel, facts: Facts, plan: Plan) -> Kernel | None:
    """The kernel with its lane axis cut into phases; None where nothing asks for it, or it cannot be done."""
    if not plan.lane or plan.across or plan.tile or facts.raxes or kernel.row_buffers:
        return None
    if facts.hints[plan.lane] < plan.lanes or not all(_is_plain(a.stmt, facts) for a in facts.accesses):
        return None
    stores = [a for a in facts.accesses if a.is_store and a.mode != CHECK_MODE]
    if any(coefficient(a.index, plan.lane) != 1 for a in stores):
        return None
    if any(part.looped for part in kernel.sections):
        return None
    stmts = [s for part in kernel.sections for s in part.body]
    phases = _divisor(_indices(stmts), plan.lane)
    if not 1 < phases <= MOST_PHASES or phases * len(stmts) > _MOST_STATEMENTS:
        return None
    return _Cut(kernel, facts, plan.lane, phases).cut()


def _side_by_side(kernel: Kernel, facts: Facts, lanes: int) -> tuple[Kernel, int] | None:
    """The kernel with a short axis as phases, and the place of the axis (the first is 1) that lanes then run
    along; None where there is no such axis.
    """
    if facts.raxes or kernel.row_buffers or any(part.looped for part in kernel.sections):
        return None
    if not all(_is_plain(a.stmt, facts) for a in facts.accesses):
        return None
    count = sum(len(part.body) for part in kernel.sections)
    for short in facts.axes:
        size = facts.sizes[short]
        if not isinstance(size, int) or not 1 < size <= MOST_PHASES or size * count > _MOST_STATEMENTS:
            continue
        rest = [a for a in facts.axes if a != short]
        for place, lane in enumerate(rest, 1):
            if facts.hints[lane] >= lanes and _takes_turns(facts, short, size, lane):
                made = _Cut(kernel, facts, short, size, whole=True).cut()
                return (made, place) if made is not None else None
    return None


def _takes_turns(facts: Facts, short: str, size: int, lane: str) -> bool:
    """Whether the elements of an axis take turns along the lanes: where everything is stored, or in some load
    while nothing jumps along the lanes.
    """
    stores, loads = list[bool](), list[bool]()
    near = True
    for access in (a for a in facts.accesses if a.mode != CHECK_MODE):
        step = coefficient(access.index, lane)
        turns = step == size and coefficient(access.index, short) == 1
        (stores if access.is_store else loads).append(turns)
        if any(lane in facts.depends[v] for v in access.indirect) or not (turns or step in (0, 1)):
            near = False
        if access.is_store and step == 0:
            return False
    return all(stores) or (near and any(loads))


def _is_plain(stmt: Load | Store, facts: Facts) -> bool:
    """Whether an access is a load of what nothing writes, or a store to one place without a condition."""
    if isinstance(stmt, Load):
        return stmt.buffer not in facts.written
    if stmt.mode == CHECK_MODE:
        return True
    return stmt.mode == "set" and not stmt.indirect and stmt.mask is None


def _indices(stmts: Iterable[Statement]) -> Iterator[IndexLike]:
    for stmt in stmts:
        yield from indices(stmt)


def _divisor(indices: Iterable[IndexLike], lane: str) -> int:
    """The least common multiple of what the lane axis is divided by; 0 where that is not always a number."""
    found = 1
    for index in indices:
        for atom in atoms(index):
            if atom.kind in ("floordiv", "mod") and lane in free_axes(atom.args[0]):
                by = atom.args[1]
                if not isinstance(by, int) or by <= 0:
                    return 0
                found = math.lcm(found, by)
    return found


@dataclass
class _Cut:
    """One kernel being cut along an axis; `whole`: nothing of the axis is left."""

    kernel: Kernel
    facts: Facts
    lane: str
    phases: int
    whole: bool = False
    body: list[Statement] = field(default_factory=list)
    made: dict[tuple[object, ...], str] = field(default_factory=dict)
    numbers: dict[str, IndexLike] = field(default_factory=dict)
    answers: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = self.facts.axes.index(self.lane)
        self.size = self.facts.sizes[self.lane]
        steps = (self.size + self.phases - 1) // self.phases
        self.axis = axis(f"{self.lane}q", steps)
        self.names: list[dict[str, str]] = [{} for _ in range(self.phases)]

    def cut(self) -> Kernel | None:
        sections = []
        for section in self.kernel.sections:
            self.body = []
            stores: list[list[Statement]] = []
            for phase in range(self.phases):
                stores.append([s for s in (self._copy(s, phase) for s in section.body) if s is not None])
            woven = [phased[k] for k in range(len(stores[0])) for phased in stores]
            sections.append(Section(section.looped, (*self.body, *woven)))
        stmts = [s for part in sections for s in part.body]
        if _divisor(_indices(stmts), f"{self.lane}q") != 1:
            return None
        hints = [self.facts.hints[a] for a in self.facts.axes]
        hints[self.place] = -(-hints[self.place] // self.phases)
        axes = list(self.kernel.axes)
        axes[self.place] = self.axis
        if self.whole:
            del hints[self.place], axes[self.place]
        return replace(self.kernel, axes=tuple(axes), sections=tuple(sections), size_hints=tuple(hints))

    def _copy(self, stmt: Statement, phase: int) -> Statement | None:
        """Write a statement of one phase; a store is given back instead."""
        names = self.names[phase]
        args = tuple(names[a] for a in stmt.args)
        copy = with_index(with_names(stmt, stmt.targets, args), lambda index: self._at(index, phase))
        if isinstance(copy, Store):
            inside = self._inside(phase)
            if inside and copy.mask is not None:
                inside = self._value("bitwise_and", (copy.mask, inside), DType.bool)
            return replace(copy, mask=inside or copy.mask)
        if isinstance(copy, Load):
            name = self._load(copy, phase)
        else:
            name = self._value(copy.op, args, copy.dtype, copy.payload)
        names[stmt.targets[0]] = name
        return None

    def _at(self, index: IndexLike, phase: int) -> IndexLike:
        return substitute(index, {self.lane: phase if self.whole else self.axis * self.phases + phase})

    def _inside(self, phase: int) -> str:
        """The name of whether a point of a phase lies on the axis; empty where all do."""
        if self.whole or phase == 0 or static_multiple(self.size, self.phases):
            return ""
        if isinstance(self.size, int) and phase < self.size % self.phases:
            return ""
        here = self._value("index", (), DType.i64, self.axis * self.phases + phase)
        end = self._value("index", (), DType.i64, self.size)
        return self._value("lt", (here, end), DType.bool)

    def _load(self, stmt: Load, phase: int) -> str:
        """A load of one phase: nothing beyond the axis, and no condition that is known."""
        place, mask, other = stmt.indirect, stmt.mask or "", stmt.other or ""
        inside = self._inside(phase) if self._varies(stmt.index, place) else ""
        if inside:
            mask = self._value("bitwise_and", (mask, inside), DType.bool) if mask else inside
            other = other or self._constant(0, stmt.dtype)
        if self.answers.get(mask) is False:
            return other
        if self.answers.get(mask, not mask):
            return self._value("load", place, stmt.dtype, stmt.payload._replace(masked=False))
        return self._value("load", (*place, mask, other), stmt.dtype, stmt.payload._replace(masked=True))

    def _varies(self, index: IndexLike, place: tuple[str, ...]) -> bool:
        """Whether an access depends on the axis; where data say, it might."""
        return bool(place) or f"{self.lane}q" in free_axes(index)

    # Values, each written once.

    def _constant(self, value: int | bool, dtype: DType) -> str:
        exact = bool(value) if dtype is DType.bool else float(value) if dtype.is_float else value
        return self._value("const", (), dtype, exact)

    def _value(self, op: str, args: tuple[str, ...], dtype: DType, payload: Any = None) -> str:
        """The name of a value: a known one where it is computed already, or is decided."""
        known = self._decided(op, args)
        if known is not None:
            return known
        key = (op, args, dtype, type(payload), repr(payload))
        if key not in self.made:
            name = f"v{len(self.made) + 1}"
            self.made[key] = name
            self.body.append(statement(op, (name,), args, dtype, payload))
            if op == "index" or (op == "const" and dtype is DType.i64):
                self.numbers[name] = payload
            if op == "const" and dtype is DType.bool:
                self.answers[name] = bool(payload)
        return self.made[key]

    def _decided(self, op: str, args: tuple[str, ...]) -> str | None:
        """The name of what a value is known to be."""
        if op in ("bitwise_and", "bitwise_or"):
            for known, other in (args, args[::-1]):
                if known in self.answers:
                    return other if self.answers[known] is (op == "bitwise_and") else known
        if op == "where" and args[0] in self.answers:
            return args[1] if self.answers[args[0]] else args[2]
        if len(args) == 2 and args[0] in self.numbers and args[1] in self.numbers:
            answer = _compare(op, self.numbers[args[0]] - self.numbers[args[1]])
            if answer is not None:
                return self._constant(answer, DType.bool)
        return None


def _compare(op: str, difference: IndexLike) -> bool | None:
    """What a comparison says of two numbers with some difference; None where it is not always the same."""
    low, high = bounds(difference)
    below, above = high is not None and high < 0, low is not None and low > 0
    if op in ("lt", "ge"):
        at_least = low is not None and low >= 0
        return (op == "lt") if below else (op == "ge") if at_least else None
    if op in ("gt", "le"):
        at_most = high is not None and high <= 0
        return (op == "gt") if above else (op == "le") if at_most else None
    if op in ("eq", "ne"):
        return (op == "ne") if below or above else (op == "eq") if low == high == 0 else None
    return None
