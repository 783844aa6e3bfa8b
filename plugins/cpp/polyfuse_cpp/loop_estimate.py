"""A guess of how long a loop takes with its lanes along some axis: what it computes, how its memory lies."""

from __future__ import annotations

from polyfuse.kit import Access, Machine, Work, seconds, work_of
from polyfuse.symbolic import coefficient
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.ops import cost_of
from polyfuse_cpp.tiling import Plan

_THREAD = Machine(operations=3e9, moved=12e9)
"""Vector operations and bytes of one thread, in a second."""
_LATENCY = 4
"""Additions in which the sum of one vector is known; others can be added to meanwhile."""
_NEAR = 4
"""Steps between lanes up to which these are put together from whole vectors of memory."""


def loop_seconds(facts: Facts, plan: Plan) -> float:
    """A guess for one thread."""
    points, steps = max(1, facts.points(facts.axes)), max(1, facts.points(facts.raxes))
    accesses = {id(a.stmt): a for a in facts.all_accesses}
    total = 0.0
    for section, beside in zip(facts.kernel.sections, plan.unrolls):
        price = 0.0
        for stmt in section.body:
            if id(stmt) in facts.checking:
                continue
            access = accesses.get(id(stmt))
            price += cost_of(stmt.op) if access is None else _access(access, plan, facts)
        if any(s.op == "reduce" for s in section.body):
            price = max(price, _LATENCY / max(1, plan.unroll, beside))
        # where lanes run along what is reduced, all else is done for one lane at a time
        wide = plan.lanes if not plan.across or section.looped else 1
        total += points * (steps if section.looped else 1) * price / wide
    return seconds(Work(total, work_of(facts.kernel).moved), _THREAD, 1)


def _access(access: Access, plan: Plan, facts: Facts) -> float:
    """The price of an access for a vector, in vector operations."""
    if not plan.lane or access.buffer in facts.row_buffers:
        return 1.0
    if access.stmt in [a.stmt for a in plan.tiled]:
        return 3.0
    step = coefficient(access.index, plan.lane)
    gathered = any(plan.lane in facts.depends[value] for value in access.indirect)
    if step == 0 and not gathered:
        return 0.25
    if step == 1 and not gathered:
        return 1.0
    if isinstance(step, int) and abs(step) <= _NEAR and not gathered:
        return 3.0
    # each lane has an address, and nearly each a line of the cache, of its own
    return 2.0 * plan.lanes
