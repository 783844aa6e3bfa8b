"""Index expressions as CUDA text."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.base.errors import UnsupportedError
from polyfuse.symbolic import Atom, IndexLike, is_nonnegative

__all__ = ["index_text"]


def index_text(index: IndexLike, names: Mapping[str, str]) -> str:
    """`index` in 64 bits; `names` says what axes and symbols are called."""
    if isinstance(index, int):
        return f"{index}LL"
    parts: list[str] = []
    for monomial, factor in index.terms:
        product = " * ".join(_atom_text(atom, names) for atom in monomial)
        parts.append(product if factor == 1 else f"{factor}LL * {product}")
    if index.const:
        parts.append(f"{index.const}LL")
    return " + ".join(parts)


def _atom_text(atom: Atom, names: Mapping[str, str]) -> str:
    if atom.kind in ("axis", "sym"):
        return names[atom.name]
    if atom.kind == "host":
        raise UnsupportedError(f"an index holds {atom.name}, which only the host computes", "")
    first, *rest = (f"({index_text(a, names)})" for a in atom.args)
    if atom.kind in ("floordiv", "mod"):
        plain = all(is_nonnegative(a) for a in atom.args)
        if plain:
            return f"({first} {'/' if atom.kind == 'floordiv' else '%'} {rest[0]})"
        return f"{'index_div' if atom.kind == 'floordiv' else 'index_mod'}({first}, {rest[0]})"
    for other in rest:
        first = f"index_{atom.kind}({first}, {other})"
    return first
