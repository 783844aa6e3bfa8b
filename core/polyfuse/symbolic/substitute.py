"""Replacing variables in index expressions."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.symbolic.extreme import maximum, minimum
from polyfuse.symbolic.index import Atom, IndexLike, Monomial, make, of_atom


def substitute(index: IndexLike, replacement: Mapping[str, IndexLike]) -> IndexLike:
    """`index` with axis variables, symbols and the host's numbers replaced by name, all at once, and made
    simple again."""
    if isinstance(index, int) or not replacement:
        return index
    total: IndexLike = index.const
    changed = False
    unchanged: dict[Monomial, int] = {}
    for monomial, coefficient in index.terms:
        value: IndexLike = coefficient
        touched = False
        for atom in monomial:
            new = _substitute_atom(atom, replacement)
            touched = touched or new is not None
            value = value * (of_atom(atom) if new is None else new)
        if touched:
            changed = True
            total = total + value
        else:
            unchanged[monomial] = coefficient
    return total + make(unchanged, 0) if changed else index


def _substitute_atom(atom: Atom, replacement: Mapping[str, IndexLike]) -> IndexLike | None:
    if atom.kind == "axis" or atom.kind == "sym":
        return replacement.get(atom.name)
    if atom.kind == "host" and atom.name in replacement:
        return replacement[atom.name]
    arguments = tuple(substitute(a, replacement) for a in atom.args)
    if arguments == atom.args:
        return None
    return apply(atom, arguments)


def apply(atom: Atom, arguments: tuple[IndexLike, ...]) -> IndexLike:
    """The function of `atom` applied to other operands."""
    if atom.kind == "floordiv":
        return arguments[0] // arguments[1]
    if atom.kind == "mod":
        return arguments[0] % arguments[1]
    if atom.kind == "min":
        return minimum(*arguments)
    if atom.kind == "max":
        return maximum(*arguments)
    return of_atom(Atom(atom.kind, atom.name, arguments, atom.lo, atom.hi))
