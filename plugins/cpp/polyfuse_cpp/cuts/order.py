"""Values of long bodies are used where they are still in registers.

Expressions are written one result after the other, and where a second result is made of the steps of the
first, as the position of a maximum is of all comparisons, all of it would wait on the stack until the first
is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from polyfuse.ir.kernel import Kernel, Section
from polyfuse.ir.statements import Cast, Compute, Load, Statement

_LONG = 48
"""Statements of a body from which its values do not all fit in registers."""


_MADE_OF_NOTHING = frozenset({"const", "index", "size"})


def used_early(kernel: Kernel) -> Kernel:
    """The kernel with what is the last to use a value right behind its operands, in long bodies."""
    # what is read may be written by the same launch: such a read stays where it is
    shared = {name for alias in kernel.aliases for name in (alias.input, alias.output)}
    apart = frozenset(arg.name for arg in kernel.args if arg.kind == "in" and arg.name not in shared)
    sections = tuple(
        p if p.looped or len(p.body) < _LONG else Section(False, _reordered(p.body, apart))
        for p in kernel.sections
    )
    return kernel if sections == kernel.sections else replace(kernel, sections=sections)


def _reordered(body: tuple[Statement, ...], apart: frozenset[str]) -> tuple[Statement, ...]:
    """The new order: what is made of nothing, such as an index, right before its first use, and so what is
    used once and made of that alone, or read from an argument `apart`."""
    free = {t: stmt for stmt in body if stmt.op in _MADE_OF_NOTHING for t in stmt.targets}
    last = {name: id(stmt) for stmt in body for name in stmt.args}
    uses = Counter(name for stmt in body for name in stmt.args)
    by_id = {id(stmt): stmt for stmt in body}
    order = list[int]()
    makers = dict[str, int]()
    late = dict[str, Statement]()

    def is_late(stmt: Statement) -> bool:
        if len(stmt.targets) != 1 or uses[stmt.targets[0]] != 1:
            return False
        if isinstance(stmt, Load):
            return stmt.buffer in apart and not stmt.indirect
        return isinstance(stmt, (Compute, Cast)) and all(a in late or a in free for a in stmt.args)

    def brought(stmt: Statement) -> Iterator[Statement]:
        for name in stmt.args:
            if name in late:
                first = late.pop(name)
                yield from brought(first)
                yield first

    for stmt in body:
        if stmt.op in _MADE_OF_NOTHING:
            continue
        if is_late(stmt):
            late[stmt.targets[0]] = stmt
            continue
        group = [*brought(stmt), stmt]
        own = {id(each) for each in group}
        held = [a for each in group for a in each.args if a in makers]
        position = len(order)
        if isinstance(stmt, (Compute, Cast)) and any(last[a] in own for a in held):
            position = 1 + max(order.index(makers[a]) for a in held)
        order[position:position] = map(id, group)
        makers.update((name, id(each)) for each in group for name in each.targets)
    return tuple(_with_free([by_id[number] for number in order], free))


def _with_free(body: list[Statement], free: dict[str, Statement]) -> Iterator[Statement]:
    for stmt in body:
        for name in stmt.args:
            if name in free:
                yield free.pop(name)
        yield stmt
    yield from free.values()
