"""The loops of a finished unit: their order, and contiguous ones merged into one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyfuse.ir.expr import Expr, walk
from polyfuse.schedule.fusion.space import Space, continues
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    free_axes,
    product,
    unflattened,
)


def indices_in(exprs: Sequence[Expr]) -> list[IndexLike]:
    """Every index expression inside scalar expressions."""
    out: list[IndexLike] = []
    for expr in walk(*exprs):
        if expr.op in ("load", "index"):
            out.append(expr.index)
    return list(dict.fromkeys(out))


def loop_order(
    axes: Sequence[Index], indices: Sequence[IndexLike], hint: Callable[[IndexLike], int]
) -> tuple[Index, ...]:
    """`axes` outermost first, such that the axis with the smallest strides is innermost.

    Each index votes for every pair of axes; an axis it does not depend on is better outside, where what is
    read can stay in a register. Ties keep the given order. `indices` may name a favourite twice.
    """
    strides: list[dict[str, int]] = []
    for index in indices:
        row: dict[str, int] = {}
        for var in axes:
            factor = coefficient(index, axis_name(var))
            if factor is not None and not free_axes(factor):
                row[axis_name(var)] = abs(hint(factor)) or 1 << 62
        strides.append(row)

    def inner_votes(a: str, b: str) -> int:
        """Votes for `a` inside `b` less votes for `b` inside `a`."""
        total = 0
        for row in strides:
            if a in row and b in row and row[a] != row[b]:
                total += 1 if row[a] < row[b] else -1
        return total

    ordered: list[Index] = []
    for var in axes:
        at = len(ordered)
        while at and inner_votes(axis_name(ordered[at - 1]), axis_name(var)) > 0:
            at -= 1
        ordered.insert(at, var)
    return tuple(ordered)


@dataclass(frozen=True)
class Merged:
    """Axes after merging, and the old ones in terms of the new."""

    axes: tuple[Index, ...]
    mapping: dict[str, IndexLike]


def merge_axes(axes: Sequence[Index], indices: Sequence[IndexLike], prefix: str) -> Merged:
    """Join neighbours that every index steps through as one, and rename what remains to `prefix` and a
    number.
    """
    groups: list[list[Index]] = []
    for var in axes:
        if groups and all(continues(index, groups[-1][-1], var) for index in indices):
            groups[-1].append(var)
        else:
            groups.append([var])
    out: list[Index] = []
    mapping: dict[str, IndexLike] = {}
    for i, group in enumerate(groups):
        joined = axis(f"{prefix}{i}", product(map(axis_size, group)))
        out.append(joined)
        mapping |= unflattened(joined, group)
    return Merged(tuple(out), mapping)


def merged_space(
    space: Space,
    indices: Sequence[IndexLike],
    stores: Sequence[IndexLike],
    whole: Sequence[IndexLike],
    hint: Callable[[IndexLike], int],
    reorder: bool,
    keep_loops: bool,
) -> tuple[Space, dict[str, IndexLike]]:
    """The space ordered and merged, and its old axes in terms of the new.

    Args:
        indices: every index of the unit.
        stores: indices of stores, which count double in the order.
        whole: what has steps that loops must keep or become, besides indices, and no part in the order.
        reorder: whether loops may change their order.
        keep_loops: whether the loop axes must stay as they are (a scan's).
    """
    axes, raxes = space.axes, space.raxes
    if reorder:
        axes = loop_order(axes, [*indices, *stores], hint)
        if not keep_loops:
            raxes = loop_order(raxes, indices, hint)
    parallel = merge_axes(axes, [*indices, *whole], "p")
    loops = merge_axes(raxes, indices, "r")
    return Space(parallel.axes, loops.axes), {**parallel.mapping, **loops.mapping}
