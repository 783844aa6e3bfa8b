"""Softmaxes in a kernel: e**(x - largest), which is summed along a row and divided by its sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Reduce, Statement, Store, key

__all__ = ["Shares", "shares_of"]


@dataclass(frozen=True)
class Shares:
    """What rounding may be free with.

    Attributes:
        summed: exponentials of what lies below the largest value of a row, which their sum alone needs: one
            of them is one, so those that are tiny beside it hardly count.
        parts: quotients of such exponentials and their sum, a number that all of a row have.
    """

    summed: frozenset[str] = frozenset()
    parts: frozenset[str] = frozenset()


def shares_of(kernel: Kernel) -> Shares:
    """The shares of a kernel's softmaxes."""
    made = {t: s for part in kernel.sections for s in part.body for t in s.targets}
    largest = {t: s.args[0] for t, s in made.items() if isinstance(s, Reduce) and s.kind == "max"}
    if not largest:
        return Shares()
    same = _Same(kernel, made)
    powers: set[str] = set()
    for name, stmt in made.items():
        inner = made[stmt.args[0]] if stmt.op == "exp" else stmt
        if stmt.op == "exp" and inner.op == "sub" and inner.args[1] in largest:
            if same.of(inner.args[0]) == same.of(largest[inner.args[1]]):
                powers.add(name)
    uses = [s for part in kernel.sections for s in part.body if powers & set(s.args)]
    sums = {s.targets[0]: s.args[0] for s in uses if isinstance(s, Reduce) and s.kind == "sum"}
    needed = {a for s in uses if not (s.targets and s.targets[0] in sums) for a in s.args}
    quotients = (s for s in made.values() if s.op == "div" and s.args[1] in sums)
    parts = (s.targets[0] for s in quotients if same.of(s.args[0]) == same.of(sums[s.args[1]]))
    return Shares(frozenset(sums.values()) - needed, frozenset(parts))


class _Same:
    """Numbers for values: equal ones for those that are made in the same way from the same elements."""

    def __init__(self, kernel: Kernel, made: Mapping[str, Statement]) -> None:
        self._made = made
        self._numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[str, int] = {}
        local = {b.name for b in kernel.row_buffers}
        stores = [s for part in kernel.sections for s in part.body if isinstance(s, Store)]
        self._written = {s.buffer for s in stores}
        self._rows = {
            (s.buffer, s.index): s
            for s in stores
            if s.buffer in local and sum(o.buffer == s.buffer for o in stores) == 1
        }

    def of(self, name: str) -> int:
        """The number of a value."""
        if name not in self._known:
            stmt = self._made[name]
            row = None
            if isinstance(stmt, Load) and not stmt.args:
                row = self._rows.get((stmt.buffer, stmt.index))
            if row is not None and row.dtype is stmt.dtype:
                self._known[name] = self.of(row.value)
            else:
                self._known[name] = self._numbers.setdefault(self._key(name, stmt), len(self._numbers))
        return self._known[name]

    def _key(self, name: str, stmt: Statement) -> tuple[object, ...]:
        if len(stmt.targets) != 1 or (isinstance(stmt, Load) and stmt.buffer in self._written):
            return (name,)
        return (key(stmt), *map(self.of, stmt.args))
