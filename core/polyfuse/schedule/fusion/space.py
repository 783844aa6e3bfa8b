"""Bringing two iteration spaces together: axes matched by the strides of an access that both make, split
where one side counts in larger steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyfuse.symbolic import Index, IndexLike, axis, axis_name, axis_size, coefficient, free_axes, substitute


@dataclass(frozen=True)
class Space:
    """Parallel axes and loop (reduction) axes, outermost first."""

    axes: tuple[Index, ...]
    raxes: tuple[Index, ...]


@dataclass(frozen=True)
class Match:
    """Two spaces as one.

    Attributes:
        space: the common space.
        first, second: what each side's axes are in it, by name (absent: unchanged).
        first_level, second_level: ``"R"`` where a side without loop axes runs inside the common loop, ``"P"``
            where once per parallel point, None where it keeps its own levels.
    """

    space: Space
    first: Mapping[str, IndexLike]
    second: Mapping[str, IndexLike]
    first_level: str | None
    second_level: str | None


@dataclass
class _Piece:
    """A (part of an) axis: `var` in the common space, class ``"P"`` or ``"R"``."""

    var: Index
    size: IndexLike
    cls: str


@dataclass
class _Side:
    """One space being split: every original axis is a list of pieces, outermost first."""

    space: Space
    fresh: Callable[[IndexLike], Index]
    pieces: dict[str, list[_Piece]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for cls, axes in (("P", self.space.axes), ("R", self.space.raxes)):
            for var in axes:
                self.pieces[axis_name(var)] = [_Piece(var, axis_size(var), cls)]

    def split(self, piece: _Piece, inner: IndexLike, outer: IndexLike) -> tuple[_Piece, _Piece]:
        """Replace `piece` by an outer and an inner one."""
        for parts in self.pieces.values():
            if piece in parts:
                high = _Piece(self.fresh(outer), outer, piece.cls)
                low = _Piece(self.fresh(inner), inner, piece.cls)
                at = parts.index(piece)
                parts[at : at + 1] = [high, low]
                return high, low
        raise AssertionError("a piece that belongs to no axis was split")

    def mapping(self, rename: Mapping[int, Index]) -> dict[str, IndexLike]:
        """Each original axis in terms of the common variables."""
        out: dict[str, IndexLike] = {}
        for name, parts in self.pieces.items():
            total: IndexLike = 0
            for part in parts:
                total = total * part.size + rename.get(id(part), part.var)
            if not (
                isinstance(total, Index)
                and len(parts) == 1
                and total is parts[0].var
                and axis_name(total) == name
            ):
                out[name] = total
        return out

    def flat(self, cls: str) -> list[_Piece]:
        """All pieces of a class, outermost first."""
        return [p for parts in self.pieces.values() for p in parts if p.cls == cls]


def exact_quotient(a: IndexLike, b: IndexLike) -> IndexLike | None:
    """``a / b`` where that is provably a whole number."""
    if b == 0 or a == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    q = a // b
    return q if q * b == a and not any("//" in repr(q) for _ in (0,)) else None


def match_spaces(
    first: Space,
    second: Space,
    first_index: IndexLike,
    second_index: IndexLike,
    hint: Callable[[IndexLike], int],
    fresh: Callable[[IndexLike], Index],
) -> Match | None:
    """The common space in which `first_index` and `second_index` are the same address; None where there is
    none.

    Axes that the address does not depend on are matched by extent, in order.
    """
    one, two = _Side(first, fresh), _Side(second, fresh)
    strides_one = _strides(one, first_index, hint)
    strides_two = _strides(two, second_index, hint)
    if strides_one is None or strides_two is None:
        return None
    pairs: list[tuple[_Piece, _Piece]] = []
    if not _pair_by_stride(one, two, strides_one, strides_two, pairs):
        return None
    return _complete(one, two, pairs)


def _strides(
    side: _Side, index: IndexLike, hint: Callable[[IndexLike], int]
) -> list[tuple[IndexLike, _Piece]] | None:
    """(stride, piece) of every axis that `index` depends on, smallest stride first; None if it is not
    linear.
    """
    out: list[tuple[IndexLike, _Piece]] = []
    for name in free_axes(index):
        if name not in side.pieces:
            return None
        stride = coefficient(index, name)
        if stride is None or (not isinstance(stride, int) and free_axes(stride)):
            return None
        if stride != 0:
            out.append((stride, side.pieces[name][0]))
    out.sort(key=lambda item: (abs(hint(item[0])), hint(item[1].size)))
    return out


def _pair_by_stride(
    one: _Side,
    two: _Side,
    left: list[tuple[IndexLike, _Piece]],
    right: list[tuple[IndexLike, _Piece]],
    pairs: list[tuple[_Piece, _Piece]],
) -> bool:
    i = j = 0
    left, right = list(left), list(right)
    while i < len(left) and j < len(right):
        (sa, a), (sb, b) = left[i], right[j]
        if sa != sb:
            return False
        if a.size == b.size:
            pairs.append((a, b))
            i, j = i + 1, j + 1
            continue
        over = exact_quotient(a.size, b.size)
        if over is not None:
            high, low = one.split(a, b.size, over)
            pairs.append((low, b))
            left[i] = (sa * b.size, high)
            j += 1
            continue
        over = exact_quotient(b.size, a.size)
        if over is None:
            return False
        high, low = two.split(b, a.size, over)
        pairs.append((a, low))
        right[j] = (sb * a.size, high)
        i += 1
    return i == len(left) and j == len(right)


def _pair_by_extent(
    one: _Side,
    two: _Side,
    left: Sequence[_Piece],
    right: Sequence[_Piece],
    pairs: list[tuple[_Piece, _Piece]],
) -> bool:
    """Pair what is left from the innermost outwards, splitting where extents divide."""
    a_list, b_list = list(left), list(right)
    while a_list and b_list:
        a, b = a_list.pop(), b_list.pop()
        if a.size == b.size:
            pairs.append((a, b))
            continue
        over = exact_quotient(a.size, b.size)
        if over is not None:
            high, low = one.split(a, b.size, over)
            pairs.append((low, b))
            a_list.append(high)
            continue
        over = exact_quotient(b.size, a.size)
        if over is None:
            return False
        high, low = two.split(b, a.size, over)
        pairs.append((a, low))
        b_list.append(high)
    return not a_list and not b_list


def _complete(one: _Side, two: _Side, pairs: list[tuple[_Piece, _Piece]]) -> Match | None:
    """Pair the axes the address does not show, and decide on which level each side runs."""
    loop_one, loop_two = bool(one.space.raxes), bool(two.space.raxes)
    if (loop_one and loop_two) or (not loop_one and not loop_two):
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


def _extent(pieces: Sequence[_Piece]) -> IndexLike:
    total: IndexLike = 1
    for piece in pieces:
        total = total * piece.size
    return total


def _rest(side: _Side, cls: str, pairs: Sequence[tuple[_Piece, _Piece]], which: int) -> list[_Piece]:
    taken = {id(pair[which]) for pair in pairs}
    return [p for p in side.flat(cls) if id(p) not in taken]


def _build(
    one: _Side,
    two: _Side,
    pairs: Sequence[tuple[_Piece, _Piece]],
    first_level: str | None,
    second_level: str | None,
    keep_first: bool,
) -> Match:
    """The common space has the variables (and the parallel/loop classes) of the side that keeps its
    levels.
    """
    lead, other, which = (one, two, 0) if keep_first else (two, one, 1)
    rename = {id(pair[1 - which]): pair[which].var for pair in pairs}
    space = Space(tuple(p.var for p in lead.flat("P")), tuple(p.var for p in lead.flat("R")))
    lead_map, other_map = lead.mapping({}), other.mapping(rename)
    first, second = (lead_map, other_map) if keep_first else (other_map, lead_map)
    return Match(space, first, second, first_level, second_level)


def compose(mapping: Mapping[str, IndexLike], then: Mapping[str, IndexLike]) -> dict[str, IndexLike]:
    """`mapping` followed by `then`."""
    return {name: substitute(value, then) for name, value in mapping.items()}


def fresh_axes() -> Callable[[IndexLike], Index]:
    """A supply of axis variables whose names no node uses."""
    count = [0]

    def fresh(size: IndexLike) -> Index:
        count[0] += 1
        return axis(f"a{count[0]}", size)

    return fresh
