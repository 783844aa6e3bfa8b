"""Stores whose elements take turns in memory, as real and imaginary parts do: woven together in registers."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.kernel import Kernel, Section, Stmt
from polyfuse.symbolic import IndexLike, axis, bounds, coefficient, free_axes
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.phases import MOST_PHASES
from polyfuse_cpp.scope import Weave
from polyfuse_cpp.tiling import Plan

__all__ = ["woven_stores"]


def woven_stores(kernel: Kernel, facts: Facts, plan: Plan) -> Mapping[int, Weave]:
    """What every such store (by identity) belongs to."""
    if not plan.lane or plan.across or plan.tile:
        return {}
    found: dict[int, Weave] = {}
    for section in kernel.sections:
        if section.looped and facts.raxes:
            continue
        for place, stmt in enumerate(section.body):
            if id(stmt) in found or not _may(stmt, facts):
                continue
            count = coefficient(stmt.attrs[1], plan.lane)
            if not isinstance(count, int) or not 1 < count <= MOST_PHASES:
                continue
            stores = _next_stores(section, place, count)
            if len(stores) < count or not all(_follows(s, k, stmt, facts) for k, s in enumerate(stores)):
                continue
            ends = [_end(s, k, count, section, facts, plan.lane) for k, s in enumerate(stores)]
            if None in ends or len({e for e in ends if e != 0}) > 1:
                continue
            end = next((e for e in ends if e != 0), None)
            if end is not None and not _meets(ends, end, count, facts.sizes[plan.lane]):
                continue
            found.update(dict.fromkeys(map(id, stores), Weave(stores, end)))
    return found


def _next_stores(section: Section, place: int, count: int) -> tuple[Stmt, ...]:
    """The store at a place and those that follow it to the same buffer, up to where that is read."""
    found: list[Stmt] = []
    buffer = section.body[place].attrs[0]
    for stmt in section.body[place:]:
        if stmt.op == "store" and stmt.attrs[0] == buffer:
            found.append(stmt)
        elif stmt.op == "load" and stmt.attrs[0] == buffer:
            break
        if len(found) == count:
            break
    return tuple(found)


def _may(stmt: Stmt, facts: Facts) -> bool:
    if stmt.op != "store" or stmt.attrs[0] in facts.local_names:
        return False
    return stmt.attrs[3] == "set" and not stmt.attrs[2]


def _follows(stmt: Stmt, behind: int, first: Stmt, facts: Facts) -> bool:
    """Whether a store writes the element so far behind the one that another store writes."""
    return _may(stmt, facts) and stmt.attrs[0] == first.attrs[0] and stmt.attrs[1] - first.attrs[1] == behind


def _end(stmt: Stmt, behind: int, count: int, section: Section, facts: Facts, lane: str) -> IndexLike | None:
    """Where a store's condition says that the axis ends; zero without one, None if it says something else."""
    if not stmt.attrs[4]:
        return 0
    made = {s.targets[0]: s for s in section.body if len(s.targets) == 1}
    test = made.get(stmt.args[-1])
    if test is None or test.op != "lt":
        return None
    here, end = (made.get(a) for a in test.args)
    if here is None or end is None or here.op != "index" or end.op != "index":
        return None
    if here.attrs[0] != axis(lane, facts.sizes[lane]) * count + behind or lane in free_axes(end.attrs[0]):
        return None
    return end.attrs[0]  # type: ignore[no-any-return]


def _meets(ends: list[IndexLike | None], end: IndexLike, count: int, size: IndexLike) -> bool:
    """Whether stores without a condition lie in front of the end at every step of the axis, so that nothing
    between two elements is left out."""
    for behind, condition in enumerate(ends):
        if condition != 0 or (behind == 0 and size == (end + count - 1) // count):
            continue
        high = bounds((size - 1) * count + behind - end)[1]
        if high is None or high >= 0:
            return False
    return True
