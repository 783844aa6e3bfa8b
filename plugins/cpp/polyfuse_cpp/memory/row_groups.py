"""Rows that add to one row in memory: threads take all of a group or none, and need no atomic additions."""

from __future__ import annotations

from polyfuse.ir.ops import CHECK_MODE
from polyfuse.kit import Access
from polyfuse.symbolic import atoms, axis, bounds, coefficient, substitute
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.tiling import Plan


def rows_of_group(facts: Facts, plan: Plan) -> int:
    """Rows, one after the other, that threads must not divide because they update memory which no others do:
    those whose number has one quotient by some count. One where there are none such.
    """
    if plan.serial or plan.along or plan.tile:
        return 1
    rows = plan.axes[:-1] if plan.lane and not plan.across else plan.axes
    wide = [a for a in rows if facts.sizes[a] != 1]
    updates = [a for a in facts.all_accesses if a.is_store and a.mode not in ("set", CHECK_MODE)]
    if len(wide) != 1 or not updates:
        return 1
    counts = {_count(access, wide[0], facts) for access in updates}
    return counts.pop() if len(counts) == 1 else 1


def _count(access: Access, row: str, facts: Facts) -> int:
    """The rows of a group of one update; 1 where it is not by groups, or groups may meet."""
    size = facts.sizes[row]
    counts = {
        atom.args[1]
        for atom in atoms(access.index)
        if atom.kind == "floordiv" and atom.args[0] == axis(row, size)
    }
    count = counts.pop() if len(counts) == 1 else 1
    if access.indirect or not isinstance(count, int) or not isinstance(size, int):
        return 1
    group, within = axis("group", -(-size // count)), axis("within", count)
    index = substitute(access.index, {row: group * count + within})
    step = coefficient(index, "group")
    if coefficient(index, "within") != 0 or not isinstance(step, int):
        return 1
    low, high = bounds(index - group * step)
    apart = low is not None and high is not None and abs(step) > high - low
    return count if apart else 1
