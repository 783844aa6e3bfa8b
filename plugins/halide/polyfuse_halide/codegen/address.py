"""Index expressions as text of generated programs, and what is known of their values."""

from __future__ import annotations

from polyfuse.base.errors import UnsupportedError
from polyfuse.symbolic import IndexLike, atoms, axis_size, bounds, coefficient, free_axes, of_atom, substitute
from polyfuse.symbolic.index import Atom, Index

__all__ = ["affine", "fits_i32", "index_text", "indirect_axes", "safe_name"]

_TAKEN = frozenset(("p", "log2", "log10", "log1p", "exp2", "expm1", "atan2"))


def safe_name(name: str) -> str:
    """A name of the kernel as one that hides nothing of the library: a letter or two, then digits."""
    plain = name.rstrip("0123456789")
    if plain != name and len(plain) <= 4 and plain.isidentifier() and name not in _TAKEN:
        return name
    return "v_" + "".join(c if c.isalnum() else "_" for c in name)


def index_text(index: IndexLike, wide: bool = False) -> str:
    """An index as a Python expression over Halide's variables; `wide`: in 64 bits."""
    if isinstance(index, int):
        return str(index)
    parts: list[str] = []
    for monomial, factor in index.terms:
        product = "*".join(_atom_text(atom, wide) for atom in monomial)
        parts.append(product if factor == 1 else f"-1*{product}" if factor == -1 else f"{factor}*{product}")
    if index.const:
        parts.append(str(index.const))
    return " + ".join(parts).replace("+ -", "- ")


def _atom_text(atom: Atom, wide: bool) -> str:
    if atom.kind in ("axis", "sym"):
        name = safe_name(atom.name)
        return f"as_i64({name})" if wide else name
    if atom.kind == "host":
        raise UnsupportedError(
            f"the size {atom.name} can only be computed by the host", "pass it to the kernel as an argument"
        )
    arguments = [index_text(a, wide) for a in atom.args]
    if atom.kind in ("floordiv", "mod"):
        sign = "//" if atom.kind == "floordiv" else "%"
        return f"(({arguments[0]}) {sign} ({arguments[1]}))"
    name = "least" if atom.kind == "min" else "largest"
    text = arguments[0]
    for other in arguments[1:]:
        text = f"{name}({text}, {other})"
    return text


def fits_i32(index: IndexLike) -> bool:
    """Whether an index and every part of it is known to be a 32-bit integer."""
    low, high = bounds(index)
    if low is None or high is None or low < -(1 << 31) or high >= 1 << 31:
        return False
    if isinstance(index, int):
        return True
    for monomial, factor in index.terms:
        part = Index(((monomial, factor),), 0)
        low, high = bounds(part)
        if low is None or high is None or low < -(1 << 31) or high >= 1 << 31:
            return False
        if any(atom.kind not in ("axis", "sym") and not all(map(fits_i32, atom.args)) for atom in monomial):
            return False
    return True


def affine(index: IndexLike, axes: tuple[Index, ...]) -> tuple[IndexLike, tuple[IndexLike, ...]] | None:
    """Offset and stride of each axis, where an index is a sum of axes times strides that reaches a place of
    its own from each point; None where it is not.
    """
    strides: list[IndexLike] = []
    for variable in axes:
        (name,) = free_axes(variable)
        stride = coefficient(index, name)
        if stride is None or free_axes(stride):
            return None
        if stride == 0 and axis_size(variable) != 1:
            return None
        strides.append(stride)
    offset = substitute(index, {free_axes(a)[0]: 0 for a in axes})
    return None if free_axes(offset) else (offset, tuple(strides))


def indirect_axes(index: IndexLike) -> list[Index]:
    """The variables `@k` of an index, longest names first."""
    found: dict[str, Index] = {}

    def look(part: IndexLike) -> None:
        for atom in atoms(part):
            if atom.kind == "axis" and atom.name.startswith("@"):
                found[atom.name] = of_atom(atom)

    look(index)
    return [found[name] for name in sorted(found, key=len, reverse=True)]
