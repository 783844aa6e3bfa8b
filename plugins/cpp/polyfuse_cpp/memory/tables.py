"""Values that depend on the position along the lanes alone: computed once, and read from a table by all rows.

The weights of an interpolation are such values, or sines of a position. A loop whose lanes run along rows
would compute them anew for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.statements import Statement
from polyfuse.ir.types import DType
from polyfuse.kit import backward_slice
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.loops.ops import cost_of
from polyfuse_cpp.tiling import Plan

_MOST = 8
"""Tables of one kernel."""
_BYTES = 32 << 10
"""Bytes of all tables together: they lie on the stack, and should stay in the L1 cache."""
_ROWS = 64
"""Rows from which on a table is read often enough."""
_CHEAP = 4
"""Price of a value, in vector additions, that is as quickly computed as read."""


@dataclass(frozen=True)
class Tables:
    """The tables.

    Attributes:
        values: names of the values.
        made_by: the statements that compute them, in order.
        spared: statements (by identity) that rows no longer need.
        length: elements of each table.
    """

    values: tuple[str, ...]
    made_by: tuple[Statement, ...]
    spared: frozenset[int]
    length: int


def lane_tables(facts: Facts, plan: Plan) -> Tables | None:
    """The tables of a kernel; None where none is worth it."""
    if not plan.lane or plan.across or plan.tile or plan.repeated or facts.raxes:
        return None
    size, rows = facts.sizes[plan.lane], 1
    for name in plan.axes[:-1]:
        rows *= facts.hints[name]
    if not isinstance(size, int) or rows < _ROWS:
        return None
    own: dict[str, Statement] = {}
    for stmt in facts.statements:
        if _is_own(stmt, facts, plan.lane) and all(a in own for a in stmt.args):
            own[stmt.targets[0]] = stmt
    outside = [s for s in facts.statements if id(s) not in set(map(id, own.values()))]
    prices = {
        name: sum(cost_of(s.op) for s in backward_slice(tuple(own.values()), [name]))
        for name in dict.fromkeys(a for s in outside for a in s.args)
        if name in own and own[name].dtype in (DType.f32, DType.f64) and plan.lane in facts.depends[name]
    }
    length = -(-size // (plan.lanes * plan.unroll)) * plan.lanes * plan.unroll
    chosen: list[str] = []
    room = _BYTES
    for name in sorted(prices, key=lambda n: -prices[n]):
        room -= length * own[name].dtype.itemsize
        if prices[name] <= _CHEAP or room < 0 or len(chosen) == _MOST:
            break
        chosen.append(name)
    if not chosen:
        return None
    needed = [a for s in outside for a in s.args if a not in chosen]
    rest = [s for n, s in own.items() if n not in chosen]
    still_needed = {id(s) for s in backward_slice(rest, needed)}
    spared = frozenset(id(s) for s in own.values() if id(s) not in still_needed)
    values = tuple(name for name in own if name in chosen)
    return Tables(values, backward_slice(tuple(own.values()), chosen), spared, length)


def _is_own(stmt: Statement, facts: Facts, lane: str) -> bool:
    """Whether a statement computes something, and does so alike in all rows."""
    if len(stmt.targets) != 1 or stmt.op in ("load", "store", "reduce", "scan", "rand"):
        return False
    return facts.depends_of(stmt) <= {lane}
