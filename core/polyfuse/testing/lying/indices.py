"""Defects of addresses: what is read or written is another element than it should be. None leaves a buffer
but the one that is there for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.statements import Load, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis_name,
    axis_size,
    coefficient,
    is_equal,
    maximum,
    minimum,
    substitute,
)
from polyfuse.testing.lying.planting import Defect, Plant, Planter, axes_of, change_each, tail_start, within

INDEX_BITS = 16
"""Bits that `index-cut` leaves of an index. Generators that are wrong leave 32, but then only tensors of four
thousand million elements would show it."""

Moved = Callable[[IndexLike, KernelArg, Planter], IndexLike | None]


def _reads(move: Moved) -> Plant:
    """Every read of an argument, at another index."""

    def change(stmt: Statement, planter: Planter) -> bool:
        if not isinstance(stmt, Load) or stmt.buffer not in planter.arguments:
            return False
        argument = planter.arguments[stmt.buffer]
        moved = move(stmt.index, argument, planter)
        if moved is None or argument.numel is None or is_equal(argument.numel, 0):
            return False
        inside = within(moved, argument.numel)
        if is_equal(inside, stmt.index):
            return False
        planter.put(replace(stmt, index=inside))
        return True

    return change_each(change)


def _next(index: IndexLike, argument: KernelArg, planter: Planter) -> IndexLike:
    return index + 1


def _wrong_stride(index: IndexLike, argument: KernelArg, planter: Planter) -> IndexLike | None:
    for axis in axes_of(index, planter.kernel):
        stride = coefficient(index, axis_name(axis))
        if isinstance(stride, Index) or (stride is not None and stride > 1):
            return index - axis
    return None


def _wrong_axis(index: IndexLike, argument: KernelArg, planter: Planter) -> IndexLike | None:
    varying = axes_of(index, planter.kernel)
    others = [a for a in (*planter.kernel.axes, *planter.kernel.raxes) if a not in varying]
    here = others if planter.looped else [a for a in others if a in planter.kernel.axes]
    if not varying or not here:
        return None
    return substitute(index, {axis_name(varying[-1]): here[-1]})


def _transposed(index: IndexLike, argument: KernelArg, planter: Planter) -> IndexLike | None:
    axes = axes_of(index, planter.kernel)
    if len(axes) < 2:
        return None
    first, second = axes[-2:]
    return substitute(index, {axis_name(first): second, axis_name(second): first})


def _cut(index: IndexLike, argument: KernelArg, planter: Planter) -> IndexLike | None:
    if not isinstance(argument.numel, int) or argument.numel <= 1 << INDEX_BITS:
        return None
    return index % (1 << INDEX_BITS)


def _previous_row(index: IndexLike, argument: KernelArg, planter: Planter) -> IndexLike | None:
    """Where a row is read again, that of the point before."""
    kernel = planter.kernel
    before = {
        stmt.buffer
        for section in kernel.sections[: planter.section]
        for stmt in section.body
        if isinstance(stmt, Load)
    }
    rows = [a for a in axes_of(index, kernel) if a in kernel.axes]
    if not planter.looped or argument.name not in before or not rows:
        return None
    return substitute(index, {axis_name(rows[-1]): maximum(0, rows[-1] - 1)})


def _neighbour_in_tail(index: IndexLike, argument: KernelArg, planter: Planter) -> IndexLike | None:
    axes = axes_of(index, planter.kernel)
    if not axes:
        return None
    last = axes[-1]
    return substitute(index, {axis_name(last): minimum(last, maximum(0, tail_start(axis_size(last)) - 1))})


def _without_mask(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Load) or stmt.mask is None or stmt.buffer not in planter.arguments:
        return False
    numel = planter.arguments[stmt.buffer].numel
    # an index that follows from data could be anything where the mask does not hold
    if stmt.indirect or numel is None:
        return False
    planter.put(replace(stmt, index=within(stmt.index, numel), mask=None, other=None))
    return True


def _store_next(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Store) or stmt.buffer not in planter.arguments:
        return False
    numel = planter.arguments[stmt.buffer].numel
    if numel is None or is_equal(numel, 0) or is_equal(numel, 1):
        return False
    planter.put(replace(stmt, index=(stmt.index + 1) % numel))
    return True


def _store_outside(kernel: Kernel) -> Kernel | None:
    """One more store, behind the last element, by the first point alone. It is masked, as verifiers know of
    the others that they are wrong."""
    written: list[str] = []

    def change(stmt: Statement, planter: Planter) -> bool:
        if not isinstance(stmt, Store) or written or not planter.kernel.axes:
            return False
        arg = planter.arguments.get(stmt.buffer)
        if arg is None or arg.numel is None or arg.kind == "in":
            return False
        written.append(arg.name)
        planter.put(stmt)
        mask = planter.add("eq", planter.index(planter.kernel.axes[-1]), planter.const(0, DType.i64))
        planter.put(Store(arg.name, arg.numel, stmt.value, stmt.dtype, mask=mask))
        return True

    return Planter(kernel).plant(change)


DEFECTS = (
    Defect(
        "index-off-by-one", "the element behind the right one is read", "reads an argument", _reads(_next)
    ),
    Defect(
        "wrong-stride",
        "a stride of an operand is too small by one",
        "reads along an axis whose stride is above one",
        _reads(_wrong_stride),
    ),
    Defect(
        "wrong-broadcast-axis",
        "an operand that is broadcast along one axis is read as if it were along another",
        "reads an operand that does not vary along all axes",
        _reads(_wrong_axis),
    ),
    Defect(
        "transposed-operand",
        "two axes of an operand are exchanged",
        "reads an operand along two axes",
        _reads(_transposed),
    ),
    Defect(
        "index-cut",
        f"the upper bits of an index are lost (all but {INDEX_BITS}, where real ones lose 32 of 64)",
        f"reads an operand of more than 2**{INDEX_BITS} elements",
        _reads(_cut),
    ),
    Defect(
        "stale-row",
        "where a row is read again, the buffer still holds the row before",
        "reads a row in two loops",
        _reads(_previous_row),
    ),
    Defect(
        "tail-clamped",
        "the last elements of an axis are computed from the one before them",
        "reads an argument along an axis",
        _reads(_neighbour_in_tail),
    ),
    Defect(
        "padding-read",
        "where a mask says that nothing is to be read, something is read",
        "reads under a mask",
        change_each(_without_mask),
    ),
    Defect("store-off-by-one", "results are stored one element further", "stores", change_each(_store_next)),
    Defect("store-outside", "one element behind a result is written", "stores", _store_outside),
)
