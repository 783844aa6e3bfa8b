"""Index expressions that differ from lane to lane, as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from polyfuse.symbolic import (
    IndexLike,
    axis,
    bounds,
    coefficient,
    free_axes,
    is_nonnegative,
    substitute,
)
from polyfuse.symbolic.index import Atom, make
from polyfuse_cpp.memory.address import index_text, is_power_of_two

_WINDOW = 4
"""Vectors of memory from which the lanes of one may be put together."""


def lane_index(
    index: IndexLike, lane: str, kind: str, names: Mapping[str, str], vectors: frozenset[str] = frozenset()
) -> str:
    """The value of `index` in every lane, as a vector of `kind` (``i32`` or ``i64``).

    Args:
        index: the expression; it holds at the first lane, and `lane` grows by one from lane to lane.
        lane: name of the lane axis.
        kind: element type that is wide enough for the result and everything it is made of.
        names: text of variables where it is not their own name; vectors of `kind` for those in `vectors`.
        vectors: variables that are vectors already.
    """
    return _Lanes(lane, kind, names, vectors).vector(index)


@lru_cache(maxsize=4096)
def lane_parts(index: IndexLike, varying: frozenset[str]) -> tuple[IndexLike, IndexLike]:
    """What all lanes have in common, and what is added in each: a sum whose first part names nothing that
    varies.
    """
    if isinstance(index, int):
        return index, 0
    common: dict[tuple[Atom, ...], int] = {}
    apart: dict[tuple[Atom, ...], int] = {}
    for monomial, factor in index.terms:
        varies = not varying.isdisjoint(free_axes(make({monomial: factor}, 0)))
        (apart if varies else common)[monomial] = factor
    return make(common, index.const), make(apart, 0)


@lru_cache(maxsize=4096)
def lane_offsets(index: IndexLike, lane: str, lanes: int) -> tuple[int, ...]:
    """How far from the first lane each lane reads, where that is the same for every vector, grows from lane
    to lane and stays within a few vectors; else nothing.

    A vector begins at a multiple of its lanes.
    """
    if isinstance(index, int) or lanes == 1:
        return ()
    step = coefficient(index, lane)
    if step is not None:
        return tuple(step * k for k in range(lanes)) if isinstance(step, int) and 1 < step <= _WINDOW else ()
    block = axis(lane, 1 << 40) * lanes
    first = substitute(index, {lane: block})
    found: list[int] = []
    for k in range(lanes):
        away = substitute(index, {lane: block + k}) - first
        if not isinstance(away, int) or not (found[-1] if found else 0) <= away < _WINDOW * lanes:
            return ()
        found.append(away)
    return tuple(found)


def lane_rise(index: IndexLike, lane: str, steps: int) -> int | None:
    """The most that an index rises over some steps of an axis; None where it may fall or is not known."""
    if isinstance(index, int):
        return 0
    total = 0
    for monomial, factor in index.terms:
        if lane not in free_axes(make({monomial: factor}, 0)):
            continue
        rise = _atom_rise(monomial[0], lane, steps) if len(monomial) == 1 and factor > 0 else None
        if rise is None:
            return None
        total += factor * rise
    return total


def _atom_rise(atom: Atom, lane: str, steps: int) -> int | None:
    if atom.kind == "axis":
        return steps
    rises = [lane_rise(a, lane, steps) for a in atom.args]
    known = [r for r in rises if r is not None]
    if len(known) < len(rises):
        return None
    if atom.kind in ("min", "max"):
        return max(known)
    by = atom.args[-1]
    if atom.kind == "floordiv" and isinstance(by, int) and by > 0:
        return -(-known[0] // by)
    return None


class _Lanes:
    def __init__(self, lane: str, kind: str, names: Mapping[str, str], vectors: frozenset[str]) -> None:
        self.lane, self.kind, self.names, self.vectors = lane, kind, names, vectors
        self.varying = vectors | {lane}

    def _varies(self, index: IndexLike) -> bool:
        return any(a in self.varying for a in free_axes(index))

    def _splat(self, index: IndexLike) -> str:
        return f"splat<Vec>({self.kind}({index_text(index, self.names)}))"

    def vector(self, index: IndexLike) -> str:
        if isinstance(index, int) or not self._varies(index):
            return self._splat(index)
        uniform: dict[tuple[Atom, ...], int] = {}
        linear: dict[tuple[Atom, ...], int] = {}
        others: list[tuple[tuple[Atom, ...], int]] = []
        for monomial, factor in index.terms:
            term = make({monomial: factor}, 0)
            if not self._varies(term):
                uniform[monomial] = factor
            elif not any(v in free_axes(term) for v in self.vectors) and self._is_linear(term):
                linear[monomial] = factor
            else:
                others.append((monomial, factor))
        text = ""
        if linear:
            along = make(linear, 0)
            step = coefficient(along, self.lane)
            assert step is not None
            start = index_text(along + make(uniform, index.const), self.names)
            text = (
                f"iota<Vec, {self.kind}>({self.kind}({start}), {self.kind}({index_text(step, self.names)}))"
            )
        elif uniform or index.const:
            text = self._splat(make(uniform, index.const))
        for monomial, factor in others:
            term_text = self._product(monomial, factor)
            text = f"add({text}, {term_text})" if text else term_text
        return text

    def _is_linear(self, term: IndexLike) -> bool:
        step = coefficient(term, self.lane)
        return step is not None and not self._varies(step)

    def _product(self, monomial: tuple[Atom, ...], factor: int) -> str:
        text = ""
        rest: list[Atom] = []
        for atom in monomial:
            if not self._varies(make({(atom,): 1}, 0)):
                rest.append(atom)
                continue
            vector = self._atom(atom)
            text = f"mul({text}, {vector})" if text else vector
        scale = make({tuple(rest): factor}, 0) if rest else factor
        return text if scale == 1 else f"mul({text}, {self._splat(scale)})"

    def _atom(self, atom: Atom) -> str:
        if atom.kind == "axis":
            if atom.name in self.vectors:
                return self.names[atom.name]
            return f"iota<Vec, {self.kind}>({self.kind}({self.names.get(atom.name, atom.name)}))"
        if atom.kind in ("min", "max"):
            text = self.vector(atom.args[0])
            for other in atom.args[1:]:
                text = f"{atom.kind}imum({text}, {self.vector(other)})"
            return text
        value, by = atom.args
        if is_power_of_two(by):
            assert isinstance(by, int)
            if atom.kind == "mod":
                return f"bitwise_and({self.vector(value)}, {self._splat(by - 1)})"
            return f"shift_right({self.vector(value)}, {self._splat(by.bit_length() - 1)})"
        if isinstance(by, int) and by > 0 and is_nonnegative(value) and self._small(value):
            return f"{'div' if atom.kind == 'floordiv' else 'mod'}_by<{by}>({self.vector(value)})"
        function = "floor_div" if atom.kind == "floordiv" else "remainder"
        return f"{function}({self.vector(value)}, {self.vector(by)})"

    def _small(self, value: IndexLike) -> bool:
        high = bounds(value)[1]
        return self.kind == "i32" and high is not None and high < 1 << 22
