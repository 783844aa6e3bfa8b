"""Stores interleaved in memory, as of real and imaginary parts: their vectors are interleaved too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfuse.ir.kernel import Section
from polyfuse.ir.statements import IndexValue, Load, Statement, Store
from polyfuse.symbolic import IndexLike, axis, bounds, coefficient, free_axes
from polyfuse_cpp.cuts.residues import MOST_RESIDUES
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.scope import InterleavedStores
from polyfuse_cpp.tiling import Plan


def interleaved_stores(facts: Facts, plan: Plan) -> Mapping[int, InterleavedStores]:
    """What every such store (by identity) belongs to."""
    if not plan.lane or plan.across or plan.tile:
        return {}
    found: dict[int, InterleavedStores] = {}
    for section in facts.kernel.sections:
        if section.looped and facts.raxes:
            continue
        for position, stmt in enumerate(section.body):
            if not isinstance(stmt, Store) or id(stmt) in found or not _may(stmt, facts):
                continue
            count = coefficient(stmt.index, plan.lane)
            if not isinstance(count, int) or not 1 < count <= MOST_RESIDUES:
                continue
            stores = _next_stores(section.body[position:], stmt.buffer, count)
            if len(stores) < count or not all(_follows(s, k, stmt, facts) for k, s in enumerate(stores)):
                continue
            ends = [_end(s, k, count, section, facts, plan.lane) for k, s in enumerate(stores)]
            if None in ends or len({e for e in ends if e != 0}) > 1:
                continue
            end = next((e for e in ends if e != 0), None)
            if end is not None and not _meets(ends, end, count, facts.sizes[plan.lane]):
                continue
            found.update(dict.fromkeys(map(id, stores), InterleavedStores(stores, end)))
    return found


def _next_stores(body: Sequence[Statement], buffer: str, count: int) -> tuple[Store, ...]:
    """The first stores to a buffer, up to where that is read."""
    found: list[Store] = []
    for stmt in body:
        if isinstance(stmt, Store) and stmt.buffer == buffer:
            found.append(stmt)
        elif isinstance(stmt, Load) and stmt.buffer == buffer:
            break
        if len(found) == count:
            break
    return tuple(found)


def _may(stmt: Store, facts: Facts) -> bool:
    return stmt.buffer not in facts.row_buffers and stmt.mode == "set" and not stmt.indirect


def _follows(stmt: Store, behind: int, first: Store, facts: Facts) -> bool:
    """Whether a store writes the element so far behind the one that another store writes."""
    return _may(stmt, facts) and stmt.buffer == first.buffer and stmt.index - first.index == behind


def _end(stmt: Store, behind: int, count: int, section: Section, facts: Facts, lane: str) -> IndexLike | None:
    """Where a store's condition says that the axis ends; zero without one, None if it says something else."""
    if stmt.mask is None:
        return 0
    made = {s.targets[0]: s for s in section.body if len(s.targets) == 1}
    test = made.get(stmt.mask)
    if test is None or test.op != "lt":
        return None
    here, end = (made.get(a) for a in test.args)
    if not isinstance(here, IndexValue) or not isinstance(end, IndexValue):
        return None
    if here.index != axis(lane, facts.sizes[lane]) * count + behind or lane in free_axes(end.index):
        return None
    return end.index


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
