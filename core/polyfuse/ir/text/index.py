"""Index expressions in IR text: printing and reading.

A variable is written by its name alone where the text around it declares it, and with what it is where not:
an axis as ``i0{128}`` (its size), a shape symbol as ``s0{2..64}`` or ``s0{2..}`` (its bounds).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from polyfuse.base.expressions import expression_problem
from polyfuse.ir.text.tokens import Tokens
from polyfuse.symbolic import Atom, Index, IndexLike, Monomial, as_atom, exact, of_atom
from polyfuse.symbolic.text import HOST_GRAMMAR

_PLAIN = re.compile(r"[A-Za-z_@%][A-Za-z0-9_@%.$]*\Z")


def name_text(name: str) -> str:
    """A name, quoted where it is not a plain word."""
    return name if _PLAIN.match(name) else json.dumps(name)


class Scope:
    """The variables that a text declares. Symbols declare themselves at first use; axes belong to a loop."""

    def __init__(self) -> None:
        self.symbols: dict[str, Atom] = {}
        self.axes: dict[str, Atom] = {}

    def loops(self, *axes: Iterable[IndexLike]) -> None:
        """Declare the axes of a node or kernel, and no others."""
        found = [as_atom(a) for group in axes for a in group]
        self.axes = {a.name: a for a in found if a is not None}

    def index(self, index: IndexLike) -> str:
        """Text of an index."""
        if isinstance(index, int):
            return str(index)
        parts: list[str] = []
        for monomial, factor in index.terms:
            product = "*".join(self._atom(atom) for atom in monomial)
            text = product if abs(factor) == 1 else f"{abs(factor)}*{product}"
            if parts:
                parts.append(" - " if factor < 0 else " + ")
            elif factor < 0:
                parts.append("-")
            parts.append(text)
        if index.const:
            parts.append(f" {'-' if index.const < 0 else '+'} {abs(index.const)}")
        return "".join(parts)

    def declaration(self, axis: IndexLike) -> str:
        """Text of an axis where it is declared.

        Raises:
            TypeError: it is not an axis.
        """
        atom = as_atom(axis)
        if atom is None or atom.kind != "axis":
            raise TypeError(f"{axis} is not an axis variable")
        return f"{name_text(atom.name)}{{{self.index(atom.args[0])}}}"

    def _atom(self, atom: Atom) -> str:
        if atom.kind == "axis":
            if self.axes.get(atom.name) is atom:
                return name_text(atom.name)
            return self.declaration(of_atom(atom))
        if atom.kind == "sym":
            known = self.symbols.setdefault(atom.name, atom)
            return name_text(atom.name) if known is atom else symbol_text(atom)
        if atom.kind == "host":
            operands = "".join(f", {self.index(a)}" for a in atom.args)
            return f"host[{json.dumps(atom.name)}{operands}; {_bounds(atom)}]"
        if atom.kind in ("floordiv", "mod"):
            sign = "//" if atom.kind == "floordiv" else "%"
            return f"({self._operand(atom.args[0])} {sign} {self._operand(atom.args[1])})"
        return f"{atom.kind}({', '.join(self.index(a) for a in atom.args)})"

    def _operand(self, index: IndexLike) -> str:
        text = self.index(index)
        return text if isinstance(index, int) or as_atom(index) is not None else f"({text})"


def symbol_text(atom: Atom) -> str:
    """A shape symbol where it is declared."""
    return f"{name_text(atom.name)}{{{_bounds(atom)}}}"


def _bounds(atom: Atom) -> str:
    return f"{atom.lo}..{'' if atom.hi is None else atom.hi}"


# --- reading ------------------------------------------------------------------------------------------------


def read_index(tokens: Tokens, known: Mapping[str, Atom]) -> IndexLike:
    """Read a sum of products. `known` holds the variables that the text around it declares."""
    terms: dict[Monomial, int] = {}
    const = 0
    sign = -1 if tokens.skip("-") else 1
    while True:
        product = _read_product(tokens, known)
        if isinstance(product, int):
            const += sign * product
        else:
            const += sign * product.const
            for monomial, factor in product.terms:
                terms[monomial] = terms.get(monomial, 0) + sign * factor
        if tokens.skip("+"):
            sign = 1
        elif tokens.skip("-"):
            sign = -1
        else:
            return exact(terms, const)


def read_axis(tokens: Tokens, known: Mapping[str, Atom]) -> Index:
    """Read the declaration of an axis."""
    name = _variable_name(tokens)
    tokens.expect("{")
    size = read_index(tokens, known)
    tokens.expect("}")
    return of_atom(Atom("axis", name, (size,)))


def _variable_name(tokens: Tokens) -> str:
    """The name of an axis or symbol, which programs print as it is."""
    name = tokens.name()
    if not _PLAIN.match(name):
        raise tokens.error(f"{name[:80]!r} names no variable")
    return name


def read_symbol(tokens: Tokens) -> Atom:
    """Read the declaration of a shape symbol."""
    name = _variable_name(tokens)
    tokens.expect("{")
    lo, hi = _read_bounds(tokens)
    tokens.expect("}")
    return Atom("sym", name, (), lo, hi)


def _read_product(tokens: Tokens, known: Mapping[str, Atom]) -> IndexLike:
    product: IndexLike = 1
    while True:
        product = product * (tokens.integer() if tokens.kind == "number" else _read_factor(tokens, known))
        if not tokens.skip("*"):
            return product


def _read_factor(tokens: Tokens, known: Mapping[str, Atom]) -> IndexLike:
    if tokens.skip("("):
        return _read_group(tokens, known)
    name = tokens.name()
    if name in ("min", "max") and tokens.skip("("):
        operands = [read_index(tokens, known)]
        while tokens.skip(","):
            operands.append(read_index(tokens, known))
        tokens.expect(")")
        return of_atom(Atom(name, "", tuple(operands)))
    if name == "host" and tokens.skip("["):
        text = tokens.string()
        problem = expression_problem(text, HOST_GRAMMAR)
        if problem:
            raise tokens.error(f"{text[:80]!r} is no number of the host: {problem}")
        symbols: list[IndexLike] = []
        while tokens.skip(","):
            symbols.append(read_index(tokens, known))
        tokens.expect(";")
        lo, hi = _read_bounds(tokens)
        tokens.expect("]")
        return of_atom(Atom("host", text, tuple(symbols), lo, hi))
    return of_atom(_read_variable(tokens, name, known))


def _read_group(tokens: Tokens, known: Mapping[str, Atom]) -> IndexLike:
    """After a parenthesis: a sum, or the division of one by another."""
    first = read_index(tokens, known)
    for sign, kind in (("//", "floordiv"), ("%", "mod")):
        if tokens.skip(sign):
            # not simplified: what is read is what was printed
            first = of_atom(Atom(kind, "", (first, read_index(tokens, known))))
    tokens.expect(")")
    return first


def _read_variable(tokens: Tokens, name: str, known: Mapping[str, Atom]) -> Atom:
    if not tokens.skip("{"):
        if name not in known:
            raise tokens.error(f"variable {name!r} is not declared")
        return known[name]
    if not _PLAIN.match(name):
        raise tokens.error(f"{name[:80]!r} names no variable")
    if tokens.is_bounds():
        lo, hi = _read_bounds(tokens)
        atom = Atom("sym", name, (), lo, hi)
    else:
        atom = Atom("axis", name, (read_index(tokens, known),))
    tokens.expect("}")
    return atom


def _read_bounds(tokens: Tokens) -> tuple[int, int | None]:
    lo = tokens.integer()
    tokens.expect("..")
    return lo, tokens.integer() if tokens.kind == "number" or tokens.text == "-" else None
