"""Kernels whose axes are cut into ranges, in each of which comparisons of positions are decided.

A padded tensor is ``in[p - 3] if 3 <= p < 59 else 0``, or ``in[min(max(p - 3, 0), 55)]``; parts that are
joined, rolled or mirrored are alike. Evaluated at each point, that is a mask and a gather. Cut at 3 and at 59
the middle is a copy of contiguous memory, and each margin is a few elements. Lanes run along each range of
their axis, one range after the other in every row, so that a line of memory is written once; on other axes a
row branches to the ranges that it lies in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations as pairs
from itertools import islice, pairwise

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.ir.statements import (
    Compute,
    Constant,
    IndexValue,
    indices,
)
from polyfuse.ir.types import DType
from polyfuse.symbolic import (
    IndexLike,
    atoms,
    axis,
    axis_name,
    coefficient,
    free_axes,
    is_nonnegative,
    substitute,
)
from polyfuse_cpp.cuts.copying import Copying, needed
from polyfuse_cpp.cuts.neighbours import Neighbours, neighbours
from polyfuse_cpp.cuts.residues import is_plain
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.memory.tables import lane_tables
from polyfuse_cpp.tiling import Plan

_MOST = 6
"""Ranges of one axis."""

_MOST_TURNS = 2
"""How often a remainder begins anew, for the axis to be cut there."""

_MOST_STATEMENTS = 600
"""Statements of all ranges together, beyond which compiling them costs more than they save."""

_MOST_INSIDE = 12
"""Ranges of one axis of which the longest is looked for."""

_MOST_POINTS = 0.5
"""The part of the points that lies in the longest ranges, for these to be worth code of their own."""

_LESS = 0.8
"""The part of the price that is left there."""

_ROWS = 32
"""Rows from which on threads have enough of them to share, none of which is divided."""


@dataclass(frozen=True)
class Range:
    """A part of an axis: where it begins, how long it is, and the name of its own axis."""

    first: IndexLike
    size: IndexLike
    name: str


@dataclass(frozen=True)
class Ranges:
    """A kernel that is cut.

    Attributes:
        axes: the ranges of each axis that is cut, in order; the lane axis is the last one.
        cells: what is known of the kernel of each combination of ranges, by their positions, and how it runs.
        by_rows: whether every row runs through its ranges; otherwise there are few rows, only the lane axis
            is cut, and threads share each range.
        inner: whether there is one range of each axis, outside of which points run as those of the whole
            kernel do (the last cell): all combinations would be too many statements.
        together: rows of one cell that are done together, by the cell.
    """

    axes: Mapping[str, tuple[Range, ...]]
    cells: Mapping[tuple[int, ...], tuple[Facts, Plan]]
    by_rows: bool
    inner: bool = False
    together: tuple[tuple[int, ...], Neighbours] | None = None


def cut_into_ranges(facts: Facts, plan: Plan) -> Ranges | None:
    """The ranges of a kernel; None where there are none, or where rows are not run one by one."""
    kernel = facts.kernel
    if not plan.lane or plan.across or plan.tile or plan.along or plan.serial or plan.repeated:
        return None
    if facts.raxes or kernel.row_buffers or kernel.aliases or len(kernel.sections) != 1:
        return None
    if facts.hints[plan.lane] < plan.lanes or len(facts.statements) > _MOST_STATEMENTS:
        return None
    plain = (is_plain(a.stmt, facts) and a.mode != CHECK_MODE for a in facts.all_accesses)
    if not all(plain) or lane_tables(facts, plan) is not None:
        return None
    found: dict[str, tuple[Range, ...]] = {}
    cells: dict[tuple[int, ...], Kernel] = {(): kernel}
    rows = facts.points(plan.axes[:-1])
    for name in (plan.lane, *(reversed(plan.axes[:-1]) if rows >= _ROWS else ())):
        parts = _ranges(kernel, name, facts.sizes[name], turns=name == plan.lane)
        ranges = name == plan.lane and _around_longest(kernel, name, facts.sizes[name])
        ranges = ranges or tuple(islice(parts, _MOST + 1))
        if len(ranges) < 2 and name != plan.lane:
            continue
        cut = {
            (number, *key): _cell(cell, name, part)
            for key, cell in cells.items()
            for number, part in enumerate(ranges)
        }
        statements = sum(len(cell.sections[0].body) for cell in cut.values())
        if len(ranges) <= _MOST and statements <= _MOST_STATEMENTS:
            found, cells = {name: ranges, **found}, cut
        elif name == plan.lane:
            return None
        else:
            return _inside(facts, plan)
    planned = {key: _planned(Facts.of(cell), plan, found) for key, cell in cells.items()}
    together = _together(facts, plan, planned) if rows >= _ROWS and len(found[plan.lane]) == 1 else None
    if len(cells) < 2 and together is None:
        return None
    return Ranges(found, planned, by_rows=rows >= _ROWS, together=together)


def _together(
    facts: Facts, plan: Plan, cells: Mapping[tuple[int, ...], tuple[Facts, Plan]]
) -> tuple[tuple[int, ...], Neighbours] | None:
    """Rows of a kernel, each in one cell, that are done together in the cell that has most points."""
    moving = [at for at, name in enumerate(plan.axes[:-1]) if facts.sizes[name] != 1]
    if not moving:
        return None
    largest = max(cells, key=lambda key: cells[key][0].points(cells[key][0].axes))
    its_facts, its_plan = cells[largest]
    found = neighbours(its_facts, its_plan, its_plan.axes[moving[-1]])
    return None if found is None else (largest, found)


def _inside(facts: Facts, plan: Plan) -> Ranges | None:
    """The longest range of every axis but the lanes', if most points lie in all of them and do less there."""
    kernel, inner, points = facts.kernel, dict[str, tuple[Range, ...]](), 1.0
    for name in plan.axes[:-1]:
        ranges = tuple(islice(_ranges(kernel, name, facts.sizes[name], turns=False), _MOST_INSIDE + 1))
        if not 1 < len(ranges) <= _MOST_INSIDE:
            continue
        longest = max(ranges, key=lambda r: facts.example(r.size))
        points *= facts.example(longest.size) / facts.hints[name]
        inner[name] = (longest,)
        kernel = _cell(kernel, name, longest)
    made = Facts.of(kernel)
    if not inner or points < _MOST_POINTS or made.cost > _LESS * facts.cost:
        return None
    cells: dict[tuple[int, ...], tuple[Facts, Plan]] = {
        (0,): _planned(made, plan, inner),
        (1,): (facts, plan),
    }
    together = _together(facts, plan, {(0,): cells[(0,)]})
    return Ranges(inner, cells, by_rows=True, inner=True, together=together)


def _planned(facts: Facts, plan: Plan, cut: Mapping[str, tuple[Range, ...]]) -> tuple[Facts, Plan]:
    """How the kernel of a cell runs: as the whole does, or one point after the other where it is narrow."""
    names = tuple(cut[a][0].name if a in cut else a for a in plan.axes)
    size = facts.sizes[names[-1]]
    if isinstance(size, int) and size < plan.lanes // 2:
        return facts, replace(plan, axes=names, lane="", lanes=1, unroll=1)
    return facts, replace(plan, axes=names, lane=names[-1])


def _ranges(
    kernel: Kernel, name: str, size: IndexLike, *, turns: bool, first: IndexLike = 0
) -> Iterator[Range]:
    """The ranges of an axis: it is cut where the answer of a comparison changes, and (`turns`) where the
    larger of two indices does.
    """
    at = next((b for b in _breaks(kernel, name, turns) if _is_inside(b, size)), None)
    if at is None:
        yield Range(first, size, _own(name))
        return
    for start, length in ((0, at), (at, size - at)):
        part = _cell(kernel, name, Range(start, length, name))
        yield from _ranges(part, name, length, turns=turns, first=first + start)


def _around_longest(kernel: Kernel, name: str, size: IndexLike) -> tuple[Range, ...]:
    """The longest range of an axis that would be cut into too many, and all before and behind it as one each,
    which compare at each point. None where most points are not in it.
    """
    if not isinstance(size, int):
        return ()
    found = {at for at in _breaks(kernel, name, turns=True) if isinstance(at, int) and 0 < at < size}
    if len(found) < _MOST:
        return ()
    bounds = sorted((0, size, *found))
    first, end = max(pairwise(bounds), key=lambda pair: pair[1] - pair[0])
    if end - first < _MOST_POINTS * size:
        return ()
    cuts = pairwise(sorted({0, first, end, size}))
    return tuple(Range(begin, stop - begin, _own(name)) for begin, stop in cuts)


def _own(name: str) -> str:
    """The name of a range's axis."""
    return f"{name}r"


def _is_inside(at: IndexLike, size: IndexLike) -> bool:
    return is_nonnegative(at - 1) and is_nonnegative(size - at - 1)


def _breaks(kernel: Kernel, name: str, turns: bool) -> Iterator[IndexLike]:
    """Positions on an axis from which on a comparison may have another answer."""
    numbers: dict[str, IndexLike] = {}
    for stmt in kernel.sections[0].body:
        match stmt:
            case IndexValue() | Constant(dtype=DType.i64):
                numbers[stmt.target] = stmt.payload
            case Compute(op="lt" | "ge", args=(left, right)) if left in numbers and right in numbers:
                yield from _sign_changes(numbers[left] - numbers[right], name)
            case Compute(op="le" | "gt", args=(left, right)) if left in numbers and right in numbers:
                yield from _sign_changes(numbers[left] - numbers[right] - 1, name)
        if turns:
            for index in indices(stmt):
                yield from _turns(index, name)


def _turns(index: IndexLike, name: str) -> Iterator[IndexLike]:
    """Where the larger of two indices is another one, or a remainder begins anew."""
    for atom in atoms(index):
        if atom.kind in ("min", "max"):
            for left, right in pairs(atom.args, 2):
                yield from _sign_changes(left - right, name)
        elif atom.kind == "mod":
            value, by = atom.args
            # one that begins anew many times is no shift
            if is_nonnegative(value) and is_nonnegative((_MOST_TURNS + 1) * by - 1 - value):
                for turn in range(1, _MOST_TURNS + 1):
                    yield from _sign_changes(value - turn * by, name)


def _sign_changes(index: IndexLike, name: str) -> Iterator[IndexLike]:
    """The first position on an axis where an index has another sign (zero is positive) than before."""
    step = coefficient(index, name)
    if not isinstance(step, int) or step == 0 or free_axes(index) != (name,):
        return
    start = substitute(index, {name: 0})
    if step == 1:
        yield -start
    elif step == -1:
        yield start + 1
    elif isinstance(start, int):
        yield -(start // step) if step > 0 else start // -step + 1


def _cell(kernel: Kernel, name: str, part: Range) -> Kernel:
    """The kernel of a range of one axis."""
    own = axis(part.name, part.size)
    copying = Copying()
    names: dict[str, str] = {}
    for stmt in kernel.sections[0].body:
        copying.copy(stmt, names, lambda index: substitute(index, {name: own + part.first}))
    axes = tuple(own if axis_name(a) == name else a for a in kernel.axes)
    sections = needed((Section(False, tuple(copying.body)),))
    made = replace(kernel, axes=axes, sections=sections)
    if not kernel.size_hints:
        return made
    hint = Facts.of(kernel).example(part.size)
    hints = tuple(
        hint if axis_name(a) == part.name else old for a, old in zip(axes, kernel.size_hints, strict=True)
    )
    return replace(made, size_hints=hints)
