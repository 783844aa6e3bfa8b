"""Index expressions as C++ integer text, and what is known of their values."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.base.errors import UnsupportedError
from polyfuse.symbolic import IndexLike, is_nonnegative
from polyfuse.symbolic.index import Atom

__all__ = [
    "index_text",
    "is_power_of_two",
    "safe_name",
]

_RESERVED = frozenset(
    [
        "add",
        "sub",
        "mul",
        "div",
        "neg",
        "abs",
        "sign",
        "pow",
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
        "floor",
        "ceil",
        "round",
        "trunc",
        "where",
        "cast",
        "load",
        "store",
        "lane",
        "any",
        "all",
        "fill",
        "splat",
        "iota",
        "gather",
        "scatter",
        "with",
        "tr",
        "shape",
        "policy",
        "same",
        "Sca",
        "Vec",
        "begin",
        "end",
        "item",
        "alone",
        "strip",
        "at",
        "of",
        "row",
        "tile",
        "panel",
        "pass",
        "sum",
        "sums",
        "to",
        "j",
        "k",
        "int",
        "float",
        "double",
        "bool",
        "char",
        "short",
        "long",
        "signed",
        "unsigned",
        "if",
        "else",
        "for",
        "while",
        "do",
        "switch",
        "case",
        "default",
        "break",
        "continue",
        "return",
        "goto",
        "new",
        "delete",
        "class",
        "struct",
        "union",
        "enum",
        "template",
        "typename",
        "namespace",
        "using",
        "static",
        "const",
        "auto",
        "void",
        "this",
        "and",
        "or",
        "not",
        "xor",
        "true",
        "false",
        "try",
        "catch",
        "throw",
        "operator",
        "public",
        "private",
        "protected",
        "inline",
        "extern",
        "register",
        "volatile",
        "sizeof",
        "typedef",
        "asm",
        "i8",
        "i16",
        "i32",
        "i64",
        "u8",
        "u16",
        "u32",
        "u64",
        "f16",
        "bf16",
        "f8e4m3",
        "f8e5m2",
        "f8e4m3fnuz",
        "f8e5m2fnuz",
        "f32",
        "f64",
        "n",
    ]
)


def safe_name(name: str) -> str:
    """`name` as a C++ identifier that hides nothing of the vector layer."""
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return f"{text}_" if text in _RESERVED or not text or text[0].isdigit() else text


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
        return names.get(atom.name, safe_name(atom.name))
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
