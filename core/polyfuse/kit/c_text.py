"""Index expressions and operators as C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from polyfuse.base.errors import UnsupportedError
from polyfuse.symbolic import Atom, IndexLike, is_nonnegative

INFIX: Final[Mapping[str, str]] = MappingProxyType(
    {
        "add": "+",
        "sub": "-",
        "mul": "*",
        "eq": "==",
        "ne": "!=",
        "lt": "<",
        "le": "<=",
        "gt": ">",
        "ge": ">=",
        "bitwise_and": "&",
        "bitwise_or": "|",
        "bitwise_xor": "^",
    }
)
"""Scalar operations of two operands, and how C, and languages like it, write them between these."""


def c_index(
    index: IndexLike, names: Mapping[str, str] | None = None, number: Callable[[int], str] = str
) -> str:
    """`index` as an expression of C, CUDA or the like.

    Where operands may be negative, it calls `index_div` and `index_mod`, which round down as Python does;
    besides, `index_min` and `index_max`. The code around it defines these four, for two integers each.

    Args:
        names: of axes and symbols, where they are not called as in the index. The value that a load reads
            from memory is the axis ``@0``, ``@1`` and so on, by its position in `indirect`.
        number: the text of an integer constant, such as one with a suffix for its type.

    Raises:
        UnsupportedError: the index holds what only the host can compute.
    """
    if isinstance(index, int):
        return number(index)
    parts: list[str] = []
    for monomial, factor in index.terms:
        product = " * ".join(_atom_text(atom, names or {}, number) for atom in monomial)
        parts.append(product if factor == 1 else f"{number(factor)} * {product}")
    if index.const:
        parts.append(number(index.const))
    return " + ".join(parts)


def _atom_text(atom: Atom, names: Mapping[str, str], number: Callable[[int], str]) -> str:
    if atom.kind in ("axis", "sym"):
        return names.get(atom.name, atom.name)
    if atom.kind == "host":
        raise UnsupportedError(f"an index holds {atom.name}, which only the host computes", "")
    first, *rest = (f"({c_index(a, names, number)})" for a in atom.args)
    if atom.kind in ("floordiv", "mod"):
        if all(is_nonnegative(a) for a in atom.args):
            return f"({first} {'/' if atom.kind == 'floordiv' else '%'} {rest[0]})"
        return f"{'index_div' if atom.kind == 'floordiv' else 'index_mod'}({first}, {rest[0]})"
    for other in rest:
        first = f"index_{atom.kind}({first}, {other})"
    return first
