"""Index expressions as text of generated programs, and what is known of their values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from polyfuse.base.errors import UnsupportedError
from polyfuse.kit import Affine, affine
from polyfuse.symbolic import Atom, Index, IndexLike, atoms, axis_size

_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def index_text(index: IndexLike, wide: bool = False, names: Mapping[str, str] = _NO_NAMES) -> str:
    """An index as an expression over Halide's variables; `wide`: in 64 bits; `names`: texts of variables
    that have other names than in the kernel.
    """
    if isinstance(index, int):
        return str(index)
    parts: list[str] = []
    for monomial, factor in index.terms:
        product = "*".join(_atom_text(atom, wide, names) for atom in monomial)
        parts.append(product if factor == 1 else f"-1*{product}" if factor == -1 else f"{factor}*{product}")
    if index.const:
        parts.append(str(index.const))
    return " + ".join(parts).replace("+ -", "- ")


def _atom_text(atom: Atom, wide: bool, names: Mapping[str, str]) -> str:
    if atom.kind in ("axis", "sym"):
        name = names.get(atom.name, atom.name)
        return f"as_i64({name})" if wide else name
    if atom.kind == "host":
        raise UnsupportedError(
            f"the size {atom.name} can only be computed by the host", "pass it to the kernel as an argument"
        )
    arguments = [index_text(a, wide, names) for a in atom.args]
    if atom.kind in ("floordiv", "mod"):
        sign = "//" if atom.kind == "floordiv" else "%"
        return f"(({arguments[0]}) {sign} ({arguments[1]}))"
    name = "least" if atom.kind == "min" else "largest"
    text = arguments[0]
    for other in arguments[1:]:
        text = f"{name}({text}, {other})"
    return text


def injective_affine(index: IndexLike, axes: tuple[Index, ...]) -> Affine | None:
    """An index as an affine function of axes that reaches an element of its own from each point; None where
    it is none.
    """
    found = affine(index, axes)
    if found is None or any(s == 0 and axis_size(a) != 1 for s, a in zip(found.strides, axes, strict=True)):
        return None
    return found


def indirect_axes(index: IndexLike) -> Mapping[str, IndexLike]:
    """The extents of the variables `@k` of an index."""
    return {a.name: a.args[0] for a in atoms(index) if a.kind == "axis" and a.name.startswith("@")}
