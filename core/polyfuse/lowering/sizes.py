"""Symbolic sizes of the traced graph as index expressions, their example values, and guards where one is
needed."""

from __future__ import annotations

from typing import Any

from polyfuse.symbolic import Atom, Index, IndexLike, bounds, host, maximum, symbol
from polyfuse.symbolic.convert import from_sympy, host_text
from polyfuse.symbolic.index import atoms, of_atom
from polyfuse.symbolic.text import evaluate
from polyfuse.torch_compat.tracing import shapes

FAR_BELOW = -(2**62)
"""Below any number that data can hold: the bound of a symbol of which nothing is known."""


class SizeTable:
    """The index of every symbolic number of one graph, each converted once."""

    def __init__(self, shape_env: Any) -> None:
        self.env = shape_env
        self.hints: dict[str, int] = {}
        self._known: dict[Any, IndexLike] = {}
        self._strides: dict[Any, IndexLike] = {}
        self._guessed: dict[Index, int] = {}

    def index(self, value: Any) -> IndexLike:
        """The index of an int, SymInt, SymBool, SymFloat or sympy expression. What is no integer comes as
        host text."""
        if type(value) is int:
            return value
        expr = shapes.simplify(self.env, shapes.expr_of(value))
        if isinstance(expr, (bool, int)):
            return int(expr)
        found = self._known.get(expr)
        if found is None:
            found = self._known[expr] = self._convert(expr)
        return found

    def number(self, value: Any) -> IndexLike | float:
        """Like `index`, but a fraction that is known comes as it is."""
        known = shapes.simplify(self.env, shapes.expr_of(value))
        return known if isinstance(known, float) else self.index(value)

    def stride(self, value: Any) -> IndexLike:
        """Like `index`, without the ``max(1, n)`` torch writes into strides for sizes that may be zero: where
        the size is zero the stride addresses nothing."""
        if type(value) is int:
            return value
        index = self.index(value)
        if isinstance(index, int):
            return index
        found = self._strides.get(index)
        if found is None:
            found = self._strides[index] = _without_unit_maximum(index)
        return found

    def sizes(self, values: Any) -> tuple[IndexLike, ...]:
        """`index` of each."""
        return tuple([v if type(v) is int else self.index(v) for v in values])

    def hint(self, index: IndexLike) -> int:
        """The example value of an index over shape symbols; axis variables count as zero."""
        if isinstance(index, int):
            return index
        found = self._guessed.get(index)
        if found is None:
            values = dict(self.hints)
            for atom in atoms(index):
                if atom.kind == "axis":
                    values[atom.name] = 0
                elif atom.kind == "sym" and atom.name not in values:
                    values[atom.name] = max(atom.lo, 64) if atom.hi is None else atom.hi
            try:
                found = evaluate(index, values)
            except (ValueError, ZeroDivisionError, OverflowError, NameError):
                found = 64
            self._guessed[index] = found
        return found

    def evaluate(self, condition: Any) -> bool:
        """Whether a symbolic condition holds for the example inputs; the compiled graph is guarded by that
        answer."""
        return shapes.guard(self.env, condition)

    def _convert(self, expr: Any) -> IndexLike:
        for free in shapes.free_symbols(expr):
            if str(free) not in self.hints:
                self.hints[str(free)] = shapes.hint(self.env, free)
        if not getattr(expr, "is_integer", False):
            if getattr(expr, "is_Symbol", False):
                return symbol(str(expr), FAR_BELOW)
            return host(host_text(expr), tuple(self.index(s) for s in shapes.free_symbols(expr)), FAR_BELOW)
        if not expr.is_Symbol and shapes.is_one(self.env, expr):
            return 1  # a size that broadcasts
        return from_sympy(expr, self._bounds)

    def _bounds(self, expr: Any) -> tuple[int, int | None]:
        low, high = shapes.value_range(self.env, expr)
        return FAR_BELOW if low is None else low, high


def _without_unit_maximum(index: Index) -> IndexLike:
    total: IndexLike = index.const
    for monomial, factor in index.terms:
        value: IndexLike = factor
        for atom in monomial:
            value = value * _size_of_maximum(atom)
        total = total + value
    return total


def _size_of_maximum(atom: Atom) -> IndexLike:
    if atom.kind == "max" and any(a == 1 for a in atom.args):
        rest = [a for a in atom.args if a != 1]
        if rest and all((bounds(a)[0] or 0) >= 0 for a in rest):
            return maximum(*rest)
    return of_atom(atom)
