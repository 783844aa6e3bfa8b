"""Index expressions: exact integer polynomials over axis variables and shape symbols.

An index is a plain ``int`` where everything is known, and an interned `Index` otherwise. An `Index` has
one canonical form, a sum of integer multiples of monomials plus a constant, where a monomial is a product
of atoms: axis variables, shape symbols, and the few functions that polynomials do not have (floor division,
modulo, minimum, maximum, and host-only text). Equality is identity of the canonical form, so two ways to
write one address compare equal, and every operation costs a few dictionary accesses. (The reason for not
using sympy here is in
``docs/decisions/index-expressions.md``.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Union

from polyfuse.base.intern import InternTable

IndexLike = Union[int, "Index"]

_ATOMS: InternTable[Atom] = InternTable()
_INDICES: InternTable[Index] = InternTable()

Division = Callable[[IndexLike, IndexLike], IndexLike]

_DIVISION: list[Division] = []
"""Floor division and modulo. They simplify by bounds, which are computed on indices: `divmod`, above this
file, installs them here once, when the package is imported."""


def install_division(floordiv: Division, mod: Division) -> None:
    """Say what ``//`` and ``%`` of an `Index` do."""
    _DIVISION[:] = [floordiv, mod]


class Atom:
    """One factor of a monomial. Interned: equal atoms are the same object.

    Attributes:
        kind: ``"axis"``, ``"sym"``, ``"floordiv"``, ``"mod"``, ``"min"``, ``"max"``, ``"host"``.
        name: the variable's name, or the host text of a ``"host"`` atom; empty for functions.
        args: operands of a function; ``(size,)`` for an axis; free symbols for a host atom.
        lo, hi: inclusive integer bounds of a ``"sym"`` atom (``hi`` None when unbounded).
        order: where it stands among the atoms of a monomial.
    """

    __slots__ = ("__weakref__", "args", "hi", "kind", "lo", "name", "order")

    kind: str
    name: str
    args: tuple[IndexLike, ...]
    lo: int
    hi: int | None
    order: tuple[str, str, str]

    def __new__(
        cls, kind: str, name: str = "", args: tuple[IndexLike, ...] = (), lo: int = 0, hi: int | None = None
    ) -> Atom:
        key = (kind, name, args, lo, hi)
        found = _ATOMS.find(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.kind, self.name, self.args, self.lo, self.hi = kind, name, args, lo, hi
        self.order = (kind, name, ",".join(map(str, args)))
        return _ATOMS.add(key, self)

    def __reduce__(self) -> tuple[object, ...]:
        return (Atom, (self.kind, self.name, self.args, self.lo, self.hi))

    def __repr__(self) -> str:
        if self.kind in ("axis", "sym"):
            return self.name
        if self.kind == "host":
            return f"host[{self.name}]"
        if self.kind == "floordiv":
            return f"({_operand(self.args[0])} // {_operand(self.args[1])})"
        if self.kind == "mod":
            return f"({_operand(self.args[0])} % {_operand(self.args[1])})"
        return f"{self.kind}({', '.join(map(str, self.args))})"


def _operand(index: IndexLike) -> str:
    """Text of an operand of ``//`` or ``%``, which bind as tightly as a product."""
    text = str(index)
    return text if isinstance(index, int) or as_atom(index) is not None else f"({text})"


Monomial = tuple[Atom, ...]


def _order_of(monomial: Monomial) -> tuple[object, ...]:
    return tuple(atom.order for atom in monomial)


class Index:
    """A non-constant integer polynomial. Build it by arithmetic from `axis` and `symbol`, never directly."""

    __slots__ = ("__weakref__", "_memo", "const", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    const: int

    def __new__(cls, terms: tuple[tuple[Monomial, int], ...], const: int) -> Index:
        key = (terms, const)
        found = _INDICES.find(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.terms, self.const = terms, const
        self._memo = {}
        return _INDICES.add(key, self)

    _memo: dict[object, object]

    def __reduce__(self) -> tuple[object, ...]:
        return (Index, (self.terms, self.const))

    def __add__(self, other: IndexLike) -> IndexLike:
        if isinstance(other, int):
            return self if other == 0 else Index(self.terms, self.const + other)
        merged = dict(self.terms)
        for monomial, coefficient in other.terms:
            total = merged.get(monomial, 0) + coefficient
            if total:
                merged[monomial] = total
            else:
                del merged[monomial]
        return make(merged, self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> IndexLike:
        return Index(tuple((m, -c) for m, c in self.terms), -self.const)

    def __sub__(self, other: IndexLike) -> IndexLike:
        return self + (-other)

    def __rsub__(self, other: IndexLike) -> IndexLike:
        return (-self) + other

    def __mul__(self, other: IndexLike) -> IndexLike:
        if isinstance(other, int):
            if other == 0:
                return 0
            if other == 1:
                return self
            return Index(tuple((m, c * other) for m, c in self.terms), self.const * other)
        product: dict[Monomial, int] = {}
        for left, a in (*self.terms, ((), self.const)):
            for right, b in (*other.terms, ((), other.const)):
                if a * b:
                    monomial = tuple(sorted(left + right, key=lambda atom: atom.order))
                    product[monomial] = product.get(monomial, 0) + a * b
        const = product.pop((), 0)
        return make({m: c for m, c in product.items() if c}, const)

    __rmul__ = __mul__

    def __floordiv__(self, other: IndexLike) -> IndexLike:
        return _DIVISION[0](self, other)

    def __rfloordiv__(self, other: int) -> IndexLike:
        return _DIVISION[0](other, self)

    def __mod__(self, other: IndexLike) -> IndexLike:
        return _DIVISION[1](self, other)

    def __rmod__(self, other: int) -> IndexLike:
        return _DIVISION[1](other, self)

    def __repr__(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms:
            product = "*".join(map(repr, monomial))
            text = product if abs(coefficient) == 1 else f"{abs(coefficient)}*{product}"
            parts.append(
                ("-" if coefficient < 0 else "") + text
                if not parts
                else (" - " if coefficient < 0 else " + ") + text
            )
        if self.const:
            parts.append(f" {'-' if self.const < 0 else '+'} {abs(self.const)}")
        return "".join(parts)


def make(terms: Mapping[Monomial, int], const: int) -> IndexLike:
    """The canonical index of ``sum(coefficient * monomial) + const``; all coefficients non-zero."""
    if not terms:
        return const
    if len(terms) > 1:
        joined = _rejoin(terms) if any(atom.kind == "mod" for m in terms for atom in m) else None
        if joined is not None:
            return joined + const
        return Index(tuple(sorted(terms.items(), key=lambda item: _order_of(item[0]))), const)
    return Index(tuple(terms.items()), const)


def exact(terms: Mapping[Monomial, int], const: int) -> IndexLike:
    """The index of exactly these terms, ordered but not simplified: for text that is read back."""
    nonzero = [(m, c) for m, c in terms.items() if c]
    return Index(tuple(sorted(nonzero, key=lambda item: _order_of(item[0]))), const) if nonzero else const


def _rejoin(terms: Mapping[Monomial, int]) -> IndexLike | None:
    """``b*(x // b) + x % b`` is ``x``, and ``b*((x // b) % c) + x % b`` is ``x % (b*c)``: splitting an axis
    and joining it again must leave no trace. All of it may be a multiple of something.
    """
    for monomial, coefficient in terms.items():
        low = _modulo_in(monomial)
        if low is None:
            continue
        x, b = low.args
        rest = dict(terms)
        del rest[monomial]
        multiple = make({left: coefficient}, 0) if (left := _without_atom(monomial, low)) else coefficient
        quotient = x // b * b * multiple
        if isinstance(quotient, int):
            continue
        if quotient.const == 0 and all(rest.get(m) == c for m, c in quotient.terms):
            for m, _ in quotient.terms:
                del rest[m]
            return make(rest, 0) + x * multiple
        digit = _higher_digit(rest, x, b, b * multiple)
        if digit is not None:
            term, count = digit
            del rest[term]
            return make(rest, 0) + x % (b * count) * multiple
    return None


def _higher_digit(
    terms: Mapping[Monomial, int], x: IndexLike, b: IndexLike, multiple: IndexLike
) -> tuple[Monomial, IndexLike] | None:
    """The term ``multiple * ((x // b) % c)``, which makes ``x % (b*c)`` of ``x % b``, and its `c`."""
    for monomial, factor in terms.items():
        high = _modulo_in(monomial)
        if high is None or isinstance(high.args[0], int):
            continue
        left = _without_atom(monomial, high)
        if (make({left: factor}, 0) if left else factor) == multiple and high.args[0] == x // b:
            return monomial, high.args[1]
    return None


def _modulo_in(monomial: Monomial) -> Atom | None:
    """The only atom of a product that is a modulo."""
    found = [atom for atom in monomial if atom.kind == "mod"]
    return found[0] if len(found) == 1 else None


def _without_atom(monomial: Monomial, atom: Atom) -> Monomial:
    return tuple(other for other in monomial if other is not atom)


def of_atom(atom: Atom) -> Index:
    """The index that is just this atom."""
    return Index((((atom,), 1),), 0)


def axis(name: str, size: IndexLike) -> Index:
    """An axis variable: an integer in ``[0, size)``."""
    return of_atom(Atom("axis", name, (size,)))


def symbol(name: str, lo: int = 0, hi: int | None = None) -> Index:
    """A shape symbol with inclusive bounds, unknown until run time."""
    return of_atom(Atom("sym", name, (), lo, hi))


def host(text: str, symbols: Iterable[IndexLike], lo: int = 0, hi: int | None = None) -> Index:
    """A size that only the host can compute, given as Python text over its free symbols."""
    return of_atom(Atom("host", text, tuple(symbols), lo, hi))


def as_atom(index: IndexLike) -> Atom | None:
    """The single atom that `index` consists of, or None."""
    if isinstance(index, int) or index.const or len(index.terms) != 1:
        return None
    monomial, coefficient = index.terms[0]
    return monomial[0] if coefficient == 1 and len(monomial) == 1 else None


def axis_name(index: IndexLike) -> str:
    """Name of the axis variable that `index` is.

    Raises:
        TypeError: it is anything else.
    """
    atom = as_atom(index)
    if atom is None or atom.kind != "axis":
        raise TypeError(f"{index} is not an axis variable")
    return atom.name


def axis_size(index: IndexLike) -> IndexLike:
    """Extent of the axis variable that `index` is.

    Raises:
        TypeError: it is anything else.
    """
    atom = as_atom(index)
    if atom is None or atom.kind != "axis":
        raise TypeError(f"{index} is not an axis variable")
    return atom.args[0]


def atoms(index: IndexLike) -> Iterator[Atom]:
    """Every atom in `index`, those inside functions too, each as often as it occurs."""
    if isinstance(index, int):
        return
    for monomial, _ in index.terms:
        for atom in monomial:
            yield atom
            if atom.kind != "axis":
                for argument in atom.args:
                    yield from atoms(argument)


def free_axes(index: IndexLike) -> tuple[str, ...]:
    """Names of the axis variables in `index`, sorted."""
    if isinstance(index, int):
        return ()
    found = index._memo.get("axes")
    if found is None:
        found = index._memo["axes"] = tuple(sorted({a.name for a in atoms(index) if a.kind == "axis"}))
    return found  # type: ignore[return-value]


def free_symbols(index: IndexLike) -> tuple[str, ...]:
    """Names of the shape symbols in `index` (those in axis sizes are not in the index), sorted."""
    return tuple(sorted({a.name for a in atoms(index) if a.kind == "sym"}))


def coefficient(index: IndexLike, name: str) -> IndexLike | None:
    """The factor of axis `name` where `index` is linear in it (0 if absent); None where it is not linear."""
    if isinstance(index, int):
        return 0
    total: IndexLike = 0
    for monomial, factor in index.terms:
        count = sum(1 for atom in monomial if atom.kind == "axis" and atom.name == name)
        for atom in monomial:
            if atom.kind not in ("axis", "sym") and any(name in free_axes(a) for a in atom.args):
                return None
        if count > 1:
            return None
        if count == 1:
            rest = tuple(a for a in monomial if not (a.kind == "axis" and a.name == name))
            total = total + (make({rest: factor}, 0) if rest else factor)
    return total


def product(factors: Iterable[IndexLike]) -> IndexLike:
    """The product of sizes; 1 for none."""
    total: IndexLike = 1
    for factor in factors:
        total = total * factor
    return total
