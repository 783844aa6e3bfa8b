"""Index expressions as C++ integer text, and what is known of their values."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.base.errors import UnsupportedError
from polyfuse.symbolic import IndexLike, is_nonnegative
from polyfuse.symbolic.index import Atom


def index_text(index: IndexLike, names: Mapping[str, str] | None = None) -> str:
    """`index` as a C++ expression of type i64; `names` gives the text of a variable where it is not its own
    name.
    """
    given = names or {}
    if isinstance(index, int):
        return _number(index)
    parts: list[str] = []
    for monomial, factor in index.terms:
        atoms = [_atom_text(atom, given) for atom in monomial]
        if factor not in (1, -1):
            atoms.append(_number(abs(factor)))
        text = " * ".join(atoms)
        sign = "-" if factor < 0 else "+"
        parts.append(f" {sign} {text}" if parts else ("-" + text if factor < 0 else text))
    if index.const:
        parts.append(f" {'-' if index.const < 0 else '+'} {_number(abs(index.const))}")
    return "".join(parts)


def _number(value: int) -> str:
    return str(value) if -(1 << 31) < value < 1 << 31 else f"{value}LL"


def _atom_text(atom: Atom, names: Mapping[str, str]) -> str:
    if atom.kind in ("axis", "sym"):
        return names.get(atom.name, atom.name)
    if atom.kind == "host":
        raise UnsupportedError(
            f"the size {atom.name} can only be computed by the host", "pass it to the kernel as an argument"
        )
    arguments = [index_text(a, names) for a in atom.args]
    if atom.kind in ("floordiv", "mod"):
        by = atom.args[1]
        plain = is_nonnegative(atom.args[0]) and is_nonnegative(by)
        if plain and isinstance(by, int) and is_power_of_two(by):
            # compilers do not know that nothing is negative here
            floor = atom.kind == "floordiv"
            return f"(({arguments[0]}) {f'>> {by.bit_length() - 1}' if floor else f'& {by - 1}'})"
        if plain:
            sign = "/" if atom.kind == "floordiv" else "%"
            return f"(({arguments[0]}) {sign} ({arguments[1]}))"
        return f"{'index_div' if atom.kind == 'floordiv' else 'index_mod'}({arguments[0]}, {arguments[1]})"
    text = arguments[0]
    for other in arguments[1:]:
        text = f"index_{atom.kind}({text}, {other})"
    return text


def is_power_of_two(value: IndexLike) -> bool:
    """Whether `value` is a known positive power of two."""
    return isinstance(value, int) and value > 0 and value & (value - 1) == 0
