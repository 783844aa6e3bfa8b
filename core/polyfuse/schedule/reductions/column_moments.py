"""Mean and variance of long columns, of which a host reads the matrix once.

Two passes over columns that do not stay in the caches read memory twice. Parts of a column are read once
instead: what is added up in each is the distance from a number near the part's mean, and its square. The
total, and the squares around any centre ``m``, follow part by part::

    sum (x - m)^2 = sum d^2 - (sum d)^2 / n + n * (near + sum d / n - m)^2        with d = x - near

`near` is the mean of ``k`` elements of the part, so that its distance from the mean of all ``n`` is at most
the root of ``n / k`` times their standard deviation: the difference loses at most a factor of ``n / k`` of
precision. Squares of the elements themselves would lose any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from polyfuse.ir.expr import Expr, apply, const, load, loads, reindex
from polyfuse.ir.graph import Graph
from polyfuse.ir.nodes import Pointwise, Reduction
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, flat_index

PART = 64
"""Elements of a part of a column, about: so many rows of a strip of columns stay in the first cache."""
_SAMPLES = 4
"""Elements of a part whose mean is near that of all."""


@dataclass(frozen=True)
class Parts:
    """How columns are divided.

    Attributes:
        outer, inner: the loops over parts, and over the elements of each.
        mapping: the original loops in terms of both.
        count, length: how many parts there are, and how many elements each has.
    """

    outer: tuple[Index, ...]
    inner: tuple[Index, ...]
    mapping: Mapping[str, IndexLike]
    count: int
    length: int


def deviations(graph: Graph, position: int) -> tuple[Reduction, ...]:
    """The later nodes that sum ``(x - m)^2``, or ``x - m``, over the axes over which the node at `position`
    sums `x`, where `m` is made of that sum; none where no node sums the squares.
    """
    first = graph.nodes[position]
    if not isinstance(first, Reduction) or first.kind != "sum" or not first.values[0].dtype.is_float:
        return ()
    value, total = first.values[0], (first.outputs[0], first.index)
    read = {item.buffer for item in loads(value)}
    found: list[Reduction] = []
    for node in graph.nodes[position + 1 :]:
        if isinstance(node, Reduction) and node.kind == "sum":
            centre = _centre(node, value)
            alike = (node.axes, node.raxes) == (first.axes, first.raxes)
            if centre is not None and alike and {(e.buffer, e.index) for e in loads(centre)} == {total}:
                found.append(node)
        if not read.isdisjoint(node.writes()):
            break
    return tuple(found) if any(map(_is_of_squares, found)) else ()


def _is_of_squares(node: Reduction) -> bool:
    value = node.values[0]
    return value.op == "mul" and value.args[0] is value.args[1]


def _centre(node: Reduction, value: Expr) -> Expr | None:
    """`m` where a node sums ``(value - m) * (value - m)``, or ``value - m``."""
    away = node.values[0].args[0] if _is_of_squares(node) else node.values[0]
    return away.args[1] if away.op == "sub" and away.args[0] is value else None


def moments_of_parts(
    first: Reduction,
    others: Sequence[Reduction],
    how: Parts,
    stored: Callable[[Pointwise], Expr],
    partial: Callable[[Reduction, Expr], tuple[Reduction, Expr]],
) -> tuple[Pointwise | Reduction, ...]:
    """The nodes that replace a sum and those of `deviations`, or one reduction to moments.

    Args:
        first: the sum, or the reduction to moments.
        others: the sums of deviations; none beside a reduction to moments.
        how: the parts.
        stored: makes the buffer that a node writes, and loads from it.
        partial: makes the node that sums a value over each part, named after the one given, and the load of
            what that writes.
    """
    value = reindex(first.values[0], how.mapping)
    dtype = value.dtype
    number = const(float(how.length), dtype)
    axes = (*how.outer, *first.axes)
    start = Pointwise(
        f"{first.name}_near",
        axes,
        (),
        f"{first.name}_near0",
        flat_index(axes),
        _near(value, how.inner),
        origins=first.origins,
    )
    near = stored(start)
    away = apply("sub", value, near)
    square_of = next(filter(_is_of_squares, others), None) or replace(first, name=f"{first.name}_squares")
    distances, distance = partial(first, away)
    squares, square = partial(square_of, apply("mul", away, away))
    mean = apply("add", near, apply("div", distance, number))
    spread = apply("sub", square, apply("div", apply("mul", distance, distance), number))

    def around(centre: Expr) -> Expr:
        off = apply("sub", mean, centre)
        return apply("add", spread, apply("mul", apply("mul", off, off), number))

    def final(node: Reduction, made: Expr, outputs: tuple[str, ...]) -> Reduction:
        name = f"{node.name}_final"
        return replace(node, name=name, raxes=how.outer, outputs=outputs, kind="sum", values=(made,))

    if others:
        total = apply("add", apply("mul", near, number), distance)
        outputs, last = first.outputs, []
        for node in others:
            centre = _centre(node, first.values[0])
            assert centre is not None
            # a difference of neighbours is exact, or nearly
            plain = apply("add", apply("mul", apply("sub", near, centre), number), distance)
            last.append(final(node, around(centre) if node is square_of else plain, node.outputs))
    else:
        # all parts have as many elements
        total = apply("div", mean, const(float(how.count), dtype))
        outputs = first.outputs[:1]
        centre = load(outputs[0], first.index, dtype)
        last = [final(square_of, around(centre), first.outputs[1:2])]
    return start, distances, squares, final(first, total, outputs), *last


def _near(value: Expr, inner: tuple[Index, ...]) -> Expr:
    """The mean of a few elements of a part; zero where it is infinite or NaN: distances from infinity are no
    numbers.
    """
    extent = axis_size(inner[0])
    assert isinstance(extent, int)
    zero = {axis_name(a): 0 for a in inner}
    samples = dict.fromkeys(extent * k // _SAMPLES for k in range(_SAMPLES))
    sample = [reindex(value, {**zero, axis_name(inner[0]): at}) for at in samples]
    total = sample[0]
    for element in sample[1:]:
        total = apply("add", total, element)
    mean = apply("div", total, const(float(len(sample)), value.dtype))
    below = apply("lt", apply("abs", mean), const(float("inf"), value.dtype))
    return apply("where", below, mean, const(0.0, value.dtype))
