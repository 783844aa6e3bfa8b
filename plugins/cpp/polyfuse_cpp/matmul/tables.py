"""What an epilogue computes alike for all rows, such as the factors of a normalisation: once for each column,
in tables.
"""

from __future__ import annotations

from polyfuse.ir.statements import Load, Statement
from polyfuse.kit import backward_slice
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.loops.ops import cost_of
from polyfuse_cpp.matmul.problem import Matmul
from polyfuse_cpp.memory.tables import Tables

__all__ = ["column_tables"]

_MOST = 8
"""Tables of one kernel."""
_ROWS = 8
"""Rows from which on a table is read often enough."""
_CHEAP = 4
"""Price of a value, in vector additions, that is as quickly computed as read."""


def column_tables(matmul: Matmul, isa: Isa) -> Tables | None:
    """The tables of a matmul; None where none is worth it."""
    facts, lane = matmul.facts, matmul.b.axes[-1]
    if isa.lanes == 1 or matmul.extent(matmul.a.axes) < _ROWS:
        return None
    own: dict[str, Statement] = {}
    for stmt in matmul.epilogue:
        if _is_own(stmt, matmul) and all(a in own for a in stmt.args):
            own[stmt.targets[0]] = stmt
    inside = set(map(id, own.values()))
    outside = [s for s in matmul.epilogue if id(s) not in inside]
    chosen = {
        name
        for name in dict.fromkeys(a for s in outside for a in s.args)
        if name in own
        and own[name].dtype is matmul.dtype
        and lane in facts.depends[name]
        and sum(cost_of(s.op) for s in backward_slice(tuple(own.values()), [name])) > _CHEAP
    }
    if not chosen or len(chosen) > _MOST:
        return None
    needed = [a for s in outside for a in s.args if a not in chosen]
    kept = {id(s) for s in backward_slice([s for n, s in own.items() if n not in chosen], needed)}
    spared = frozenset(inside - kept)
    values = tuple(name for name in own if name in chosen)
    return Tables(values, backward_slice(tuple(own.values()), list(values)), spared, 0)


def _is_own(stmt: Statement, matmul: Matmul) -> bool:
    """Whether a statement gives a value, and the same one in all rows."""
    facts, lane = matmul.facts, matmul.b.axes[-1]
    if len(stmt.targets) != 1 or not facts.is_pure(stmt) or stmt.op == "rand":
        return False
    if isinstance(stmt, Load) and (stmt.args or stmt.buffer in facts.may_change):
        return False
    return facts.depends_of(stmt) <= {lane}
