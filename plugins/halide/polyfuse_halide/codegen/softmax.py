"""Softmaxes in a kernel: e**(x - largest), which is summed along a row and divided by its sum."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.ir.statements import Load, Reduce, Statement, Store, key
from polyfuse.kit import KernelFacts


@dataclass(frozen=True)
class Softmaxes:
    """What rounding may be free with.

    Attributes:
        exponentials: of what lies below the largest value of a row, which their sum alone needs: one
            of them is one, so those that are tiny beside it hardly count.
        quotients: of such exponentials and their sum, a number that all of a row have.
    """

    exponentials: frozenset[str] = frozenset()
    quotients: frozenset[str] = frozenset()


def softmaxes_of(facts: KernelFacts) -> Softmaxes:
    """The softmaxes of a kernel."""
    made = {name: found.stmt for name, found in facts.definitions.items()}
    largest = {t: s.args[0] for t, s in made.items() if isinstance(s, Reduce) and s.kind == "max"}
    if not largest:
        return Softmaxes()
    same = _Same(facts)
    powers: set[str] = set()
    for name, stmt in made.items():
        inner = made[stmt.args[0]] if stmt.op == "exp" else stmt
        if stmt.op == "exp" and inner.op == "sub" and inner.args[1] in largest:
            if same.of(inner.args[0]) == same.of(largest[inner.args[1]]):
                powers.add(name)
    uses = [s for s in facts.statements if powers & set(s.args)]
    sums = {s.targets[0]: s.args[0] for s in uses if isinstance(s, Reduce) and s.kind == "sum"}
    needed = {a for s in uses if not (s.targets and s.targets[0] in sums) for a in s.args}
    divisions = (s for s in made.values() if s.op == "div" and s.args[1] in sums)
    found = (s.targets[0] for s in divisions if same.of(s.args[0]) == same.of(sums[s.args[1]]))
    return Softmaxes(frozenset(sums.values()) - needed, frozenset(found))


class _Same:
    """Numbers for values: equal ones for those that are made in the same way from the same elements."""

    def __init__(self, facts: KernelFacts) -> None:
        self._facts = facts
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[str, int] = {}

    def of(self, name: str) -> int:
        """The number of a value."""
        if name not in self._known:
            stmt = self._facts.definition(name)
            row = self._row(stmt) if isinstance(stmt, Load) and not stmt.args else None
            if row is not None and row.dtype is stmt.dtype:
                self._known[name] = self.of(row.value)
            else:
                self._known[name] = self._numbers.setdefault(self._key(name, stmt), len(self._numbers))
        return self._known[name]

    def _row(self, stmt: Load) -> Store | None:
        """The one store to the element of a row buffer that is loaded."""
        stores = self._facts.writes(stmt.buffer) if stmt.buffer in self._facts.row_buffers else ()
        found = stores[0].stmt if len(stores) == 1 else None
        return found if isinstance(found, Store) and found.index == stmt.index else None

    def _key(self, name: str, stmt: Statement) -> tuple[object, ...]:
        if len(stmt.targets) != 1 or (isinstance(stmt, Load) and stmt.buffer in self._facts.written):
            return (name,)
        return (key(stmt), *map(self.of, stmt.args))
