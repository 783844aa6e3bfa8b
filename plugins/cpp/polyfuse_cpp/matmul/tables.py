"""What an epilogue computes alike for all rows, such as the factors of a normalisation: once for each column,
in tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyfuse.ir.statements import Compute, Load, Statement
from polyfuse.kit import backward_slice
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.ops import cost_of
from polyfuse_cpp.loops.scope import Value
from polyfuse_cpp.matmul.problem import Matmul

_MOST = 8
"""Tables of one kernel."""
_ROWS = 8
"""Rows from which on a table is read often enough."""
_CHEAP = 4
"""Price of a value, in vector additions, that is as quickly computed as read."""

FACTOR, SUMMAND = "factor", "summand"
"""What each column's sums are multiplied by, and what is added then."""


@dataclass(frozen=True)
class Affine:
    """What is done first with each sum, as one multiplication and one addition.

    Attributes:
        target: the name of the result.
        steps: operators (`add`, `sub`, `mul`), each with the name of a value that is alike in all rows.
    """

    target: str
    steps: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ColumnTables:
    """The tables.

    Attributes:
        values: names of the values that tables hold.
        made_by: the statements that compute what tables are made from, in order.
        spared: statements (by identity) that rows no longer need.
        affine: what a factor and a summand for each column stand for, if anything.
    """

    values: tuple[str, ...]
    made_by: tuple[Statement, ...]
    spared: frozenset[int]
    affine: Affine | None

    @property
    def names(self) -> tuple[str, ...]:
        """What each of them is called."""
        return (*self.values, *(() if self.affine is None else (FACTOR, SUMMAND)))


def table_of(name: str) -> str:
    """The name of a table in C++."""
    return f"table_{name}"


def emit_affine(affine: Affine, matmul: Matmul, frame: Frame) -> None:
    """Multiply and add what each column has."""
    sums, lane, texts = frame.env[matmul.accumulator], matmul.b.axes[-1], []
    for copy in range(frame.copies):
        texts.append(f"scaled_{copy}")
        factor, summand = (
            f"load<Vec>({table_of(name)} + {lane} + {copy * frame.lanes})" for name in (FACTOR, SUMMAND)
        )
        frame.out.line(f"const auto {texts[-1]} = add_product({sums.at(copy)}, {factor}, {summand});")
    frame.env[affine.target] = Value(matmul.dtype, True, tuple(texts))


def column_tables(matmul: Matmul, isa: Isa, group: str = "") -> ColumnTables | None:
    """The tables of a matmul; None where none is worth it. `group`: a batch axis for each point of which
    there are tables.
    """
    if isa.lanes == 1 or matmul.extent(matmul.a.axes) < _ROWS:
        return None
    own: dict[str, Statement] = {}
    for stmt in matmul.epilogue:
        if _is_own(stmt, matmul, group) and all(a in own for a in stmt.args):
            own[stmt.targets[0]] = stmt
    inside = set(map(id, own.values()))
    outside = [s for s in matmul.epilogue if id(s) not in inside]
    affine, folded = _affine(matmul, outside, own)
    outside = [s for s in outside if id(s) not in folded]
    values = _values(matmul, outside, own)
    if (not values and affine is None) or len(values) > _MOST:
        return None
    needed = [a for s in outside for a in s.args if a not in values]
    needed_by_rows = {id(s) for s in backward_slice([s for n, s in own.items() if n not in values], needed)}
    sources = [*values, *(name for _, name in affine.steps)] if affine is not None else list(values)
    made_by = backward_slice(tuple(own.values()), sources)
    return ColumnTables(values, made_by, frozenset(inside - needed_by_rows) | folded, affine)


def _values(matmul: Matmul, outside: Sequence[Statement], own: Mapping[str, Statement]) -> tuple[str, ...]:
    """Values that are better read than computed."""
    lane, made = matmul.b.axes[-1], tuple(own.values())
    read = {a for s in outside for a in s.args}
    return tuple(
        name
        for name, stmt in own.items()
        if name in read
        and stmt.dtype is matmul.dtype
        and lane in matmul.facts.depends[name]
        and sum(cost_of(s.op) for s in backward_slice(made, [name])) > _CHEAP
    )


def _affine(
    matmul: Matmul, outside: Sequence[Statement], own: Mapping[str, Statement]
) -> tuple[Affine | None, frozenset[int]]:
    """What is done with a sum as long as that is multiplied by and added to columns' values, and the
    statements that do it.
    """
    if matmul.kernel.numerics != "fast":
        return None, frozenset()
    at, steps, done = matmul.accumulator, [], []
    while True:
        readers = [s for s in outside if at in s.args]
        step = _step(readers[0], at, matmul, own) if len(readers) == 1 else None
        if step is None:
            break
        steps.append(step)
        done.append(id(readers[0]))
        at = readers[0].targets[0]
    kinds = {op for op, _ in steps}
    if "mul" not in kinds or len(kinds) == 1:
        return None, frozenset()
    return Affine(at, tuple(steps)), frozenset(done)


def _step(stmt: Statement, at: str, matmul: Matmul, own: Mapping[str, Statement]) -> tuple[str, str] | None:
    if (
        not isinstance(stmt, Compute)
        or stmt.op not in ("add", "sub", "mul")
        or stmt.dtype is not matmul.dtype
    ):
        return None
    first, second = stmt.args
    other = second if first == at else first
    if other == at or other not in own or (stmt.op == "sub" and first != at):
        return None
    return stmt.op, other


def _is_own(stmt: Statement, matmul: Matmul, group: str) -> bool:
    """Whether a statement gives a value, and the same one in all rows."""
    facts, lane = matmul.facts, matmul.b.axes[-1]
    if len(stmt.targets) != 1 or not facts.is_pure(stmt) or stmt.op == "rand":
        return False
    if isinstance(stmt, Load) and (stmt.args or stmt.buffer in facts.may_change):
        return False
    return facts.depends_of(stmt) <= {lane, group}
