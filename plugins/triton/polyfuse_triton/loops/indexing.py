"""Index expressions as Triton text.

An address is a scalar plus a vector: what depends on the program and on loop counters is one number for a
whole tile, and only the steps inside the tile are arithmetic on vectors. The scalar is computed with 64 bits
where 32 might not do; the steps inside a tile nearly always fit in 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.kit import fits_i32_throughout
from polyfuse.kit.spans import known_range
from polyfuse.symbolic import (
    Atom,
    Index,
    IndexLike,
    Monomial,
    exact,
    free_axes,
    free_symbols,
    is_nonnegative,
    of_atom,
)


@dataclass(frozen=True)
class Variable:
    """What an axis is in the text.

    Attributes:
        text: its value: a scalar, or a vector along a tile dimension.
        dims: tile dimensions along which it varies; empty for a scalar.
        base: for a vector: the scalar it begins with, empty for zero.
        lane: for a vector: its steps from the beginning on, which are below `block`.
        block: extent of the tile.
        wide: whether it has 64 bits.
    """

    text: str
    dims: frozenset[str] = frozenset()
    base: str = ""
    lane: str = ""
    block: int = 0
    wide: bool = False


@dataclass(frozen=True)
class Address:
    """An index in two parts, either of which may be empty."""

    scalar: str
    vector: str
    dims: frozenset[str]

    def of(self, pointer: str) -> str:
        """The text of an element's address."""
        return " + ".join([pointer, *(_grouped(t) for t in (self.scalar, self.vector) if t)])

    def text(self) -> str:
        """Both parts as one number."""
        parts = [t for t in (self.scalar, self.vector) if t]
        return " + ".join(_grouped(t) for t in parts) if len(parts) > 1 else parts[0] if parts else "0"


def _grouped(text: str) -> str:
    """A part of an address, in parentheses where it is more than one name or product."""
    return f"({text})" if " + " in text or " - " in text or text.startswith("-") else text


def _fits_i32(index: IndexLike) -> bool:
    """Whether an index, and every index inside its functions, is computed with 32 bits: sizes are given in
    64.
    """
    return not free_symbols(index) and fits_i32_throughout(index)


class Indexer:
    """Turns indices into text. `find` gives the variable of an axis or of an indirect value by its name, and
    thereby learns which are used.
    """

    def __init__(self, find: Callable[[str], Variable], sizes: Mapping[str, str]) -> None:
        self._find = find
        self._sizes = sizes

    def address(self, index: IndexLike) -> Address:
        """An index as a scalar and a vector."""
        if isinstance(index, int):
            return Address(str(index) if index else "", "", frozenset())
        wide = not _fits_i32(index)
        bent = {m: f for m, f in index.terms if self._dims(m) and self._lane(m) is None}
        wide_inside = wide and not self._steps_fit(index, bent)
        scalars: list[tuple[str, int]] = []
        vectors: list[tuple[str, int]] = []
        dims: frozenset[str] = frozenset()
        for monomial, factor in index.terms:
            found = self._dims(monomial)
            if not found:
                scalars.append((self._product(monomial, wide), factor))
                continue
            dims |= found
            if monomial in bent:
                vectors.append((self._product(monomial, wide_inside), factor))
                continue
            base, lane = self._split(monomial, wide, wide_inside)
            if base:
                scalars.append((base, factor))
            vectors.append((lane, factor))
        return Address(_sum(scalars, index.const), _sum(vectors, 0), dims)

    def value(self, index: IndexLike) -> tuple[str, frozenset[str], bool]:
        """An index as one number: its text, the dimensions it varies along, and whether it has 64 bits."""
        wide = not _fits_i32(index)
        if isinstance(index, int):
            return str(index), frozenset(), wide
        terms = [(self._product(m, wide), factor) for m, factor in index.terms]
        dims = frozenset[str]().union(*(self._dims(m) for m, _ in index.terms))
        return _sum(terms, index.const), dims, wide

    def _dims(self, monomial: Monomial) -> frozenset[str]:
        names = {name for atom in monomial for name in free_axes(of_atom(atom))}
        return frozenset[str]().union(*(self._find(name).dims for name in names))

    def _lane(self, monomial: Monomial) -> int | None:
        """The position of the one vector variable that a term is linear in; None where there is no such."""
        positions = [k for k, atom in enumerate(monomial) if self._atom_dims(atom)]
        if len(positions) != 1 or monomial[positions[0]].kind != "axis":
            return None
        return positions[0] if self._find(monomial[positions[0]].name).lane else None

    def _steps_fit(self, index: Index, bent: Mapping[Monomial, int]) -> bool:
        """Whether the steps inside a tile, added up, fit in 32 bits."""
        inside = exact(bent, 0)
        if not _fits_i32(inside):
            return False
        span = known_range(inside)
        reach = max(map(abs, span)) if span is not None else 0
        for monomial, factor in index.terms:
            position = self._lane(monomial)
            if position is not None and len(monomial) == 1:
                # a step of an unknown size has 64 bits by itself
                reach += abs(factor) * self._find(monomial[position].name).block
        return reach < 1 << 31

    def _split(self, monomial: Monomial, wide: bool, wide_inside: bool) -> tuple[str, str]:
        """The scalar and the vector of a term that is linear in one vector variable."""
        position = self._lane(monomial)
        assert position is not None
        variable = self._find(monomial[position].name)
        others = [self._atom(atom, wide) for k, atom in enumerate(monomial) if k != position]
        lane = f"tl.cast({variable.lane}, tl.int64)" if wide_inside and not others else variable.lane
        base = ""
        if variable.base:
            narrow = wide and not variable.wide
            base = " * ".join([f"tl.cast({variable.base}, tl.int64)" if narrow else variable.base, *others])
        return base, " * ".join([lane, *others])

    def _atom_dims(self, atom: Atom) -> frozenset[str]:
        return self._dims((atom,))

    def _product(self, monomial: Monomial, wide: bool) -> str:
        return " * ".join(self._atom(atom, wide) for atom in monomial)

    def _atom(self, atom: Atom, wide: bool) -> str:
        if atom.kind == "axis":
            found = self._find(atom.name)
            return f"tl.cast({found.text}, tl.int64)" if wide and not found.wide else found.text
        if atom.kind == "sym":
            return self._sizes.get(atom.name, atom.name)
        if atom.kind == "host":
            raise UnsupportedError(
                f"the size {atom.name} can only be computed by the host",
                "pass it to the kernel as an argument",
            )
        texts = [self._inside(a, wide) for a in atom.args]
        if atom.kind in ("floordiv", "mod"):
            if is_nonnegative(atom.args[0]) and is_nonnegative(atom.args[1]):
                return f"({texts[0]} {'//' if atom.kind == 'floordiv' else '%'} {texts[1]})"
            return f"index_{'div' if atom.kind == 'floordiv' else 'mod'}({texts[0]}, {texts[1]})"
        name = "tl.minimum" if atom.kind == "min" else "tl.maximum"
        text = texts[0]
        for other in texts[1:]:
            text = f"{name}({text}, {other})"
        return text

    def _inside(self, index: IndexLike, wide: bool) -> str:
        """An operand of a function."""
        if isinstance(index, int):
            return str(index)
        terms = [(self._product(m, wide), factor) for m, factor in index.terms]
        text = _sum(terms, index.const)
        alone = len(index.terms) == 1 and len(index.terms[0][0]) == 1
        return text if alone and not index.const and index.terms[0][1] == 1 else f"({text})"


def _sum(terms: list[tuple[str, int]], constant: int) -> str:
    parts: list[str] = []
    for text, factor in terms:
        product = text if abs(factor) == 1 else f"{text} * {abs(factor)}"
        sign = "-" if factor < 0 else "+"
        if not parts and factor < 0 and abs(factor) != 1:
            parts.append(f"{text} * {factor}")
        elif not parts:
            # a leading minus would be computed apart
            parts.append(product if factor > 0 else f"{text} * -1")
        else:
            parts.append(f"{sign} {product}")
    if constant:
        parts.append(str(constant) if not parts else f"{'-' if constant < 0 else '+'} {abs(constant)}")
    return " ".join(parts)
