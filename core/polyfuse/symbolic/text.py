"""Index expressions as host-language (Python) text, and their value for known variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from polyfuse.base.expressions import Grammar

if TYPE_CHECKING:
    from polyfuse.symbolic.index import Atom, IndexLike

HOST_GRAMMAR = Grammar(
    frozenset({"min", "max", "abs", "round", "float", "math.*"}), modules=frozenset({"math"})
)
"""What the text of a number of the host may contain."""

_HOST_FUNCTIONS = {"min": min, "max": max, "abs": abs, "round": round, "float": float}


def python_text(index: IndexLike) -> str:
    """`index` as a Python expression over its symbols' names."""
    if isinstance(index, int):
        return str(index)
    parts: list[str] = []
    for monomial, factor in index.terms:
        product = "*".join(_atom_text(atom) for atom in monomial)
        parts.append(product if factor == 1 else f"-{product}" if factor == -1 else f"{factor}*{product}")
    if index.const:
        parts.append(str(index.const))
    return " + ".join(parts).replace("+ -", "- ")


def _atom_text(atom: Atom) -> str:
    if atom.kind in ("axis", "sym"):
        return atom.name
    if atom.kind == "host":
        return f"({atom.name})"
    arguments = [python_text(a) for a in atom.args]
    if atom.kind == "floordiv":
        return f"(({arguments[0]}) // ({arguments[1]}))"
    if atom.kind == "mod":
        return f"(({arguments[0]}) % ({arguments[1]}))"
    return f"{atom.kind}({', '.join(arguments)})"


def evaluate(index: IndexLike, values: Mapping[str, int]) -> int:
    """The value of `index` for the given variables and symbols.

    Raises:
        KeyError: a variable of `index` has no value.
    """
    if isinstance(index, int):
        return index
    total = index.const
    for monomial, factor in index.terms:
        for atom in monomial:
            factor *= _atom_value(atom, values)
        total += factor
    return total


def _atom_value(atom: Atom, values: Mapping[str, int]) -> int:
    if atom.kind in ("axis", "sym"):
        return values[atom.name]
    if atom.kind == "host":
        found: int = host_value(atom.name, values)
        return found
    arguments = [evaluate(a, values) for a in atom.args]
    if atom.kind == "floordiv":
        return arguments[0] // arguments[1]
    if atom.kind == "mod":
        return arguments[0] % arguments[1]
    return min(arguments) if atom.kind == "min" else max(arguments)


def host_value(text: str, values: Mapping[str, int]) -> Any:
    """The value of a number that is given as Python text over symbols; one that is no integer stays what it
    is, for arguments of calls may be such.
    """
    found = eval(text, {"math": math, "__builtins__": _HOST_FUNCTIONS}, dict(values))
    return int(found) if isinstance(found, bool) else found
