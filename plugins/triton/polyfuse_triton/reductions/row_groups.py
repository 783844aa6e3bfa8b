"""Rows of which groups add to one row each: a program takes a whole group, and needs no atomic operations.

A kernel that works along rows may also add what it computes to an element that depends on
``row // count``: sums down the columns. The program of a group holds its sums in registers and adds them to
memory once.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Store
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts, row_major
from polyfuse.symbolic import Index, atoms, axis, coefficient, free_axes, product, substitute


@dataclass(frozen=True)
class Groups:
    """Groups of values of one parallel axis.

    Attributes:
        axis: its name.
        count: values of a group.
        buffers: what they add to.
    """

    axis: str
    count: int
    buffers: frozenset[str]


def row_groups(kernel: Kernel, facts: KernelFacts) -> Groups | None:
    """The groups of a kernel's rows; None where there are none, or a program could not hold a row."""
    looped = any(section.looped for section in kernel.sections)
    if not facts.axes or (looped and len(facts.axes) > 1) or not (facts.raxes or facts.axes[1:]):
        return None
    row, columns = facts.axes[0], facts.raxes or facts.axes[1:]
    touched = [a.buffer for a in facts.accesses]
    found: dict[str, int] = {}
    for section in kernel.sections:
        for stmt in section.body:
            if isinstance(stmt, Store) and stmt.mode == "add":
                count = _count(stmt, facts, row, columns) if section.looped == looped else 0
                if not count or touched.count(stmt.buffer) != 1:
                    return None
                found[stmt.buffer] = count
    if len(set(found.values())) != 1:
        return None
    return Groups(row, next(iter(found.values())), frozenset(found))


def _count(stmt: Store, facts: KernelFacts, row: str, columns: tuple[str, ...]) -> int:
    """Rows that add to one element; 0 where that is not how a statement adds."""
    index = stmt.index
    if stmt.indirect or stmt.mask is not None or stmt.dtype is not DType.f32 or not isinstance(index, Index):
        return 0
    counts = {
        atom.args[1]
        for atom in atoms(index)
        if atom.kind == "floordiv" and free_axes(atom.args[0]) == (row,) and isinstance(atom.args[1], int)
    }
    if len(counts) != 1:
        return 0
    (count,) = counts
    assert isinstance(count, int)
    group = axis("group", -(-_size(facts, row) // count))
    rest = substitute(index, {row: group * count + axis("member", count)})
    width = product(facts.sizes[name] for name in columns)
    step = coefficient(rest, "group")
    if not isinstance(width, int) or not isinstance(step, int) or step < width:
        return 0
    return count if rest - group * step == row_major(axis(name, facts.sizes[name]) for name in columns) else 0


def _size(facts: KernelFacts, name: str) -> int:
    size = facts.sizes[name]
    return size if isinstance(size, int) else 1 << 31
