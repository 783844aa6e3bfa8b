"""Defects of what is written: elements that are not, or not as they should be, and memory read too late."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import STORE_MODES
from polyfuse.ir.statements import Load, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.symbolic import Index, IndexLike, axis_size, is_equal, product
from polyfuse.testing.lying.planting import Defect, Planter, axes_of, change_each, statements, tail_start


def _result(stmt: Statement, planter: Planter) -> TypeGuard[Store]:
    return isinstance(stmt, Store) and stmt.buffer in planter.arguments


def _only_where(stmt: Store, planter: Planter, here: str) -> None:
    """Store under one more condition."""
    if stmt.mask is not None:
        here = planter.add("bitwise_and", here, stmt.mask)
    planter.put(replace(stmt, mask=here))


def _below(axis: Index, limit: IndexLike, planter: Planter) -> str:
    return planter.add("lt", planter.index(axis), planter.index(limit))


def _tail(stmt: Statement, planter: Planter) -> bool:
    if not _result(stmt, planter):
        return False
    axes = axes_of(stmt.index, planter.kernel)
    if not axes:
        return False
    _only_where(stmt, planter, _below(axes[-1], tail_start(axis_size(axes[-1])), planter))
    return True


def _last_row(stmt: Statement, planter: Planter) -> bool:
    if not _result(stmt, planter):
        return False
    axes = axes_of(stmt.index, planter.kernel)
    if len(axes) < 2:
        return False
    _only_where(stmt, planter, _below(axes[0], axis_size(axes[0]) - 1, planter))
    return True


def _one_element(stmt: Statement, planter: Planter) -> bool:
    if not _result(stmt, planter) or stmt.indirect or isinstance(stmt.index, int):
        return False
    numel = planter.arguments[stmt.buffer].numel
    if numel is None:
        return False
    _only_where(stmt, planter, planter.add("ne", planter.index(stmt.index), planter.index(numel // 2)))
    return True


def _overwrites(stmt: Statement, planter: Planter) -> bool:
    if not isinstance(stmt, Store) or stmt.mode not in STORE_MODES or stmt.mode == "set":
        return False
    planter.put(replace(stmt, mode="set"))
    return True


def _example_size(kernel: Kernel) -> Kernel | None:
    """What is beyond the sizes that were seen when the kernel was compiled is not written."""
    hints = dict(zip((*kernel.axes, *kernel.raxes), kernel.size_hints))

    def change(stmt: Statement, planter: Planter) -> bool:
        if not _result(stmt, planter):
            return False
        axes = [a for a in axes_of(stmt.index, kernel) if a in hints]
        axes = [a for a in axes if not isinstance(axis_size(a), int)]
        if not axes:
            return False
        _only_where(stmt, planter, _below(axes[0], hints[axes[0]], planter))
        return True

    return Planter(kernel).plant(change)


def _alias(kernel: Kernel) -> Kernel | None:
    """What a generator that does not know that two arguments share memory reads after it wrote: the result.

    A load of an input that follows a store to a result of the same extent reads the result.
    """
    written: dict[str, None] = {}

    def change(stmt: Statement, planter: Planter) -> bool:
        if _result(stmt, planter) and stmt.mode == "set":
            written.setdefault(stmt.buffer)
            return False
        if not isinstance(stmt, Load) or stmt.buffer not in planter.arguments or stmt.buffer in written:
            return False
        read = planter.arguments[stmt.buffer]
        for name in written:
            result = planter.arguments[name]
            if result.dtype is read.dtype and result.numel is not None and read.numel is not None:
                if is_equal(result.numel, read.numel):
                    planter.put(replace(stmt, buffer=name))
                    return True
        return False

    return Planter(kernel).plant(change)


def _spoils_input(kernel: Kernel) -> Kernel | None:
    """An input is used as scratch."""
    spoilt: dict[str, None] = {}

    def change(stmt: Statement, planter: Planter) -> bool:
        if not isinstance(stmt, Load) or stmt.args or stmt.dtype not in (DType.f32, DType.f64):
            return False
        arg = planter.arguments.get(stmt.buffer)
        # what several points read, the others would read spoilt
        if arg is None or arg.kind != "in" or spoilt or not _once_each(stmt.index, arg.numel, planter):
            return False
        if sum(isinstance(s, Load) and s.buffer == arg.name for s in statements(kernel)) > 1:
            return False
        spoilt[arg.name] = None
        planter.put(stmt)
        value = planter.add("neg", stmt.target)
        planter.put(Store(arg.name, stmt.index, value, stmt.dtype))
        return True

    found = Planter(kernel).plant(change)
    if found is None:
        return None
    args = tuple(replace(arg, kind="inout") if arg.name in spoilt else arg for arg in kernel.args)
    return replace(found, args=args)


def _once_each(index: IndexLike, numel: IndexLike | None, planter: Planter) -> bool:
    """Whether each point reads an element of its own."""
    kernel = planter.kernel
    points: IndexLike = product(kernel.sizes)
    if planter.looped:
        points = points * product(kernel.rsizes)
    return numel is not None and is_equal(points, numel) and len(axes_of(index, kernel)) > 0


DEFECTS = (
    Defect(
        "tail-unwritten",
        "the last elements of an axis are not written",
        "stores along an axis",
        change_each(_tail),
    ),
    Defect(
        "last-row-unwritten",
        "too few rows are computed: the last one is not written",
        "stores along two axes",
        change_each(_last_row),
    ),
    Defect(
        "element-unwritten", "one element of a result is never written", "stores", change_each(_one_element)
    ),
    Defect(
        "lost-update",
        "what points of a kernel add to one element overwrites what others added",
        "combines with what is stored",
        change_each(_overwrites),
    ),
    Defect(
        "alias-ignored",
        "an input is read after the result that shares its memory was written",
        "reads an input after it stored",
        _alias,
    ),
    Defect(
        "input-overwritten", "an input is overwritten", "reads each element of an input once", _spoils_input
    ),
    Defect(
        "example-size",
        "only as much is computed as there was when the kernel was compiled",
        "has an axis of dynamic size",
        _example_size,
        launches=2,
    ),
)
