"""Why the loops of two units that access one buffer do not match: for reports of refused fusions."""

from __future__ import annotations

from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis_name,
    axis_size,
    coefficient,
    free_axes,
    product,
    substitute,
)


def mismatch(first: Unit, second: Unit) -> str:
    """What differs between the accesses that two units make to a buffer they share; empty if they share none.

    Only the first access of each side to each buffer is looked at, and the first difference is reported.
    """
    for buffer, ours in first.seen.items():
        theirs = second.seen.get(buffer)
        if theirs is None:
            continue
        a, b = ours[0].access.index, theirs[0].access.index
        if a is None or b is None:
            return f"{buffer} is accessed at data-dependent indices"
        return f"{buffer}: {_difference(first, a, second, b)}"
    return ""


def _difference(first: Unit, a: IndexLike, second: Unit, b: IndexLike) -> str:
    left, right = _steps(first, a), _steps(second, b)
    if left is None or right is None:
        return "one index is not linear in its loops"
    start = (_start(a), _start(b))
    if start[0] != start[1]:
        return f"one starts at element {start[0]}, the other at {start[1]}"
    counts = [product(size for _, size in steps) for steps in (left, right)]
    if counts[0] != counts[1]:
        return f"one accesses {counts[0]} elements, the other {counts[1]}"
    points = [product(axis_size(x) for x in (*u.space.axes, *u.space.raxes)) for u in (first, second)]
    if points[0] != points[1]:
        return f"broadcast: one makes {points[0]} accesses, the other {points[1]}"
    if left == right:
        return "the same elements in the same order"
    if _unordered(left) == _unordered(right):
        return "the same elements, by loops in another order"
    return f"strides {_strides(left)} against {_strides(right)}"


def _steps(unit: Unit, index: IndexLike) -> list[tuple[IndexLike, IndexLike]] | None:
    """(stride, extent) of the loops that move an access, outermost first; None where one does not move it
    evenly.
    """
    found: list[tuple[IndexLike, IndexLike]] = []
    moving = free_axes(index)
    for var in (*unit.space.axes, *unit.space.raxes):
        if axis_name(var) in moving:
            stride = coefficient(index, axis_name(var))
            if stride is None or (isinstance(stride, Index) and free_axes(stride)):
                return None
            found.append((stride, axis_size(var)))
    return found


def _start(index: IndexLike) -> IndexLike:
    return substitute(index, dict.fromkeys(free_axes(index), 0))


def _unordered(steps: list[tuple[IndexLike, IndexLike]]) -> list[str]:
    return sorted(map(str, steps))


def _strides(steps: list[tuple[IndexLike, IndexLike]]) -> str:
    return "(" + ", ".join(str(stride) for stride, _ in steps) + ")"
