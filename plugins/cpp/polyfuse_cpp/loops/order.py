"""The order of statements in a long body: a value is used where it is still in a register.

Expressions are written one result after the other. Where a second result is made of the steps of the first,
as the position of a maximum is of all comparisons, all of it would wait on the stack until the first is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Cast, Compute, Statement

_LONG = 48
"""Statements of a body from which its values do not all fit in registers."""


_MADE_OF_NOTHING = frozenset({"const", "index", "size"})


def used_early(kernel: Kernel) -> Kernel:
    """The kernel with what is the last to use a value right behind its operands, in long bodies."""
    sections = tuple(
        p if p.looped or len(p.body) < _LONG else Section(False, _reordered(p.body)) for p in kernel.sections
    )
    return kernel if sections == kernel.sections else replace(kernel, sections=sections)


def _reordered(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The new order: what is made of nothing, such as an index, right before its first use."""
    free = {t: stmt for stmt in body if stmt.op in _MADE_OF_NOTHING for t in stmt.targets}
    last = {name: id(stmt) for stmt in body for name in stmt.args}
    by_id = {id(stmt): stmt for stmt in body}
    order = list[int]()
    makers = dict[str, int]()
    for stmt in body:
        own = id(stmt)
        if stmt.op in _MADE_OF_NOTHING:
            continue
        held = [a for a in stmt.args if a in makers]
        if isinstance(stmt, (Compute, Cast)) and any(last[a] == own for a in held):
            order.insert(1 + max(order.index(makers[a]) for a in held), own)
        else:
            order.append(own)
        makers.update((name, own) for name in stmt.targets)
    return tuple(_with_free([by_id[number] for number in order], free))


def _with_free(body: list[Statement], free: dict[str, Statement]) -> Iterator[Statement]:
    for stmt in body:
        for name in stmt.args:
            if name in free:
                yield free.pop(name)
        yield stmt
    yield from free.values()
