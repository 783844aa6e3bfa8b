"""The statements that values are computed from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from polyfuse.ir.statements import Reduce, Statement


def backward_slice(
    statements: Sequence[Statement],
    names: Iterable[str],
    leave_out: Callable[[Statement], bool] = lambda stmt: isinstance(stmt, Reduce),
) -> tuple[Statement, ...]:
    """The statements among some that values are computed from, in order.

    Args:
        leave_out: what is neither listed nor followed to its operands; reductions, whose results are known
            from elsewhere, where nothing is given.
    """
    wanted = set(names)
    found: list[Statement] = []
    for stmt in reversed(statements):
        if wanted.intersection(stmt.targets) and not leave_out(stmt):
            wanted.update(stmt.args)
            found.append(stmt)
    return tuple(reversed(found))
