"""Matching two iteration spaces: axes are paired by the strides of an access that both make, and split where
one side counts in larger steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from polyfuse.symbolic import (
    Index,
    IndexLike,
    axis,
    axis_name,
    axis_size,
    coefficient,
    flat_index,
    free_axes,
    product,
    substitute,
)


@dataclass(frozen=True)
class Space:
    """Parallel axes and loop (reduction) axes, outermost first."""

    axes: tuple[Index, ...]
    raxes: tuple[Index, ...]


class Renaming:
    """Axes by name in terms of other axes; others stay. It remembers what it made of each index: units of
    equal nodes have equal spaces, and so share what renames their axes.

    Attributes:
        mapping: what replaces which axis.
    """

    __slots__ = ("_made", "mapping")

    def __init__(self, mapping: Mapping[str, IndexLike]) -> None:
        self.mapping = mapping
        self._made: dict[Index, IndexLike] = {}

    def __call__(self, index: IndexLike) -> IndexLike:
        if isinstance(index, int) or not self.mapping:
            return index
        found = self._made.get(index)
        if found is None:
            found = self._made[index] = substitute(index, self.mapping)
        return found


@dataclass(frozen=True)
class Match:
    """Two spaces as one.

    Attributes:
        space: the common space.
        first, second: what each side's axes are in it.
        first_level, second_level: ``"R"`` where a side without loop axes runs inside the common loop, ``"P"``
            where once per parallel point, None where it keeps its own levels.
    """

    space: Space
    first: Renaming
    second: Renaming
    first_level: str | None
    second_level: str | None


@dataclass(eq=False)
class _Part:
    """A (part of an) axis: `var` in the common space, class ``"P"`` or ``"R"``."""

    var: Index
    size: IndexLike
    cls: str


_Strided = tuple[IndexLike, _Part]
_Pairs = list[tuple[_Part, _Part]]


@dataclass
class _SplitSpace:
    """One space being split: every original axis is a list of parts, outermost first."""

    space: Space
    fresh: Callable[[IndexLike], Index]
    parts: dict[str, list[_Part]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cls, axes in (("P", self.space.axes), ("R", self.space.raxes)):
            for var in axes:
                self.parts[axis_name(var)] = [_Part(var, axis_size(var), cls)]

    def split(self, part: _Part, inner: IndexLike, outer: IndexLike) -> tuple[_Part, _Part]:
        """Replace `part` by an outer and an inner one."""
        high, low = _Part(self.fresh(outer), outer, part.cls), _Part(self.fresh(inner), inner, part.cls)
        axis_parts = next(parts for parts in self.parts.values() if part in parts)
        at = axis_parts.index(part)
        axis_parts[at : at + 1] = [high, low]
        return high, low

    def mapping(self, rename: Mapping[_Part, Index]) -> dict[str, IndexLike]:
        """Each original axis that changes, in terms of the common variables."""
        out: dict[str, IndexLike] = {}
        for name, parts in self.parts.items():
            total = flat_index([rename.get(part, part.var) for part in parts], [part.size for part in parts])
            if total is not parts[0].var or axis_name(parts[0].var) != name:
                out[name] = total
        return out

    def flat(self, cls: str) -> list[_Part]:
        """All parts of a class, outermost first."""
        return [p for parts in self.parts.values() for p in parts if p.cls == cls]


def continues(index: IndexLike, outer: Index, inner: Index) -> bool:
    """Whether stepping `outer` by one is stepping `inner` by its extent, in this index."""
    a, b = coefficient(index, axis_name(outer)), coefficient(index, axis_name(inner))
    return a is not None and b is not None and a == b * axis_size(inner)


def exact_quotient(a: IndexLike, b: IndexLike) -> IndexLike | None:
    """``a / b`` where that is provably an integer."""
    if b == 0 or a == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    q = a // b
    return q if q * b == a and "//" not in repr(q) else None


def match_spaces(
    first: Space,
    second: Space,
    first_index: IndexLike,
    second_index: IndexLike,
    hint: Callable[[IndexLike], int],
) -> Match | None:
    """The common space in which `first_index` and `second_index` are the same element; None where there is
    none.

    Axes that the index does not depend on are matched by extent, in order.
    """
    fresh = fresh_axes((first, second))
    one, two = _SplitSpace(first, fresh), _SplitSpace(second, fresh)
    left, right = _strides(one, first_index, hint), _strides(two, second_index, hint)
    pairs: _Pairs = []
    if left is None or right is None or not _pair(one, two, left, right, pairs):
        return None
    return _complete(one, two, pairs)


def _strides(side: _SplitSpace, index: IndexLike, hint: Callable[[IndexLike], int]) -> list[_Strided] | None:
    """(stride, part) of every axis that `index` depends on, smallest stride last; None if not linear."""
    out: list[_Strided] = []
    for name in free_axes(index):
        if name not in side.parts:
            return None
        stride = coefficient(index, name)
        if stride is None or (not isinstance(stride, int) and free_axes(stride)):
            return None
        if stride != 0:
            out.append((stride, side.parts[name][0]))
    out.sort(key=lambda item: (abs(hint(item[0])), hint(item[1].size)))
    return out[::-1]


def _pair(
    one: _SplitSpace, two: _SplitSpace, left: list[_Strided], right: list[_Strided], pairs: _Pairs
) -> bool:
    """Pair all parts of equal strides from the last on, splitting where one extent divides the other. Strides
    of 0 are those of axes that the index does not depend on.
    """
    while left and right:
        (stride, a), (other, b) = left.pop(), right.pop()
        if stride != other:
            return False
        if a.size == b.size:
            pairs.append((a, b))
        elif (over := exact_quotient(a.size, b.size)) is not None:
            high, low = one.split(a, b.size, over)
            pairs.append((low, b))
            left.append((stride * b.size, high))
        elif (over := exact_quotient(b.size, a.size)) is not None:
            high, low = two.split(b, a.size, over)
            pairs.append((a, low))
            right.append((stride * a.size, high))
        else:
            return False
    return not left and not right


def _pair_by_extent(
    one: _SplitSpace, two: _SplitSpace, left: Sequence[_Part], right: Sequence[_Part], pairs: _Pairs
) -> bool:
    """Pair what is left, from the innermost outwards."""
    return _pair(one, two, [(0, part) for part in left], [(0, part) for part in right], pairs)


def _complete(one: _SplitSpace, two: _SplitSpace, pairs: _Pairs) -> Match | None:
    """Pair the axes that the index does not depend on, and decide on which level each side runs."""
    loop_one, loop_two = bool(one.space.raxes), bool(two.space.raxes)
    if loop_one == loop_two:
        if any(a.cls != b.cls for a, b in pairs):
            return None
        for cls in ("P", "R"):
            if not _pair_by_extent(one, two, _rest(one, cls, pairs, 0), _rest(two, cls, pairs, 1), pairs):
                return None
        return _build(one, two, pairs, None, None, keep_first=True)
    looped, plain, side = (one, two, 0) if loop_one else (two, one, 1)
    inside = any(pair[side].cls == "R" for pair in pairs)
    rest_plain = _rest(plain, "P", pairs, 1 - side)
    rest_parallel, rest_loop = _rest(looped, "P", pairs, side), _rest(looped, "R", pairs, side)
    level = "P"
    if inside or (rest_plain and _extent(rest_plain) != _extent(rest_parallel)):
        level = "R"
        # the loop axes come last: they are the innermost of what is left
        rest_parallel = rest_parallel + rest_loop
    left, right = (rest_parallel, rest_plain) if side == 0 else (rest_plain, rest_parallel)
    if not _pair_by_extent(one, two, left, right, pairs):
        return None
    first_level, second_level = (None, level) if side == 0 else (level, None)
    return _build(one, two, pairs, first_level, second_level, keep_first=side == 0)


def _extent(parts: Sequence[_Part]) -> IndexLike:
    return product(part.size for part in parts)


def _rest(side: _SplitSpace, cls: str, pairs: _Pairs, which: int) -> list[_Part]:
    paired = {pair[which] for pair in pairs}
    return [p for p in side.flat(cls) if p not in paired]


def _build(
    one: _SplitSpace,
    two: _SplitSpace,
    pairs: _Pairs,
    first_level: str | None,
    second_level: str | None,
    keep_first: bool,
) -> Match:
    """The common space has the variables (and the parallel/loop classes) of the side that keeps its
    levels.
    """
    lead, other, which = (one, two, 0) if keep_first else (two, one, 1)
    rename = {pair[1 - which]: pair[which].var for pair in pairs}
    space = Space(tuple(p.var for p in lead.flat("P")), tuple(p.var for p in lead.flat("R")))
    lead_map, other_map = lead.mapping({}), other.mapping(rename)
    first, second = (lead_map, other_map) if keep_first else (other_map, lead_map)
    return Match(space, Renaming(first), Renaming(second), first_level, second_level)


def fresh_axes(spaces: Sequence[Space] = ()) -> Callable[[IndexLike], Index]:
    """A supply of axis variables whose names no node uses, nor any of these spaces."""
    taken = (axis_name(var) for space in spaces for var in (*space.axes, *space.raxes))
    numbers = count(1 + max((int(name[1:]) for name in taken), default=0))

    def fresh(size: IndexLike) -> Index:
        return axis(f"a{next(numbers)}", size)

    return fresh
