"""What is always true of an index: bounds, and provable comparisons."""

from __future__ import annotations

from polyfuse.symbolic.index import Atom, Index, IndexLike, free_axes, of_atom


def bounds(index: IndexLike) -> tuple[int | None, int | None]:
    """Inclusive integer bounds of `index` over all values of its variables; None where there is no bound."""
    if isinstance(index, int):
        return index, index
    found = index._memo.get("bounds")
    if found is None:
        found = index._memo["bounds"] = _bounds(index)
    return found  # type: ignore[return-value]


def _bounds(index: Index) -> tuple[int | None, int | None]:
    low: int | None = index.const
    high: int | None = index.const
    for monomial, factor in index.terms:
        lo, hi = 1, 1
        lo_known: int | None = lo
        hi_known: int | None = hi
        for atom in monomial:
            a, b = atom_bounds(atom)
            if a is None or a < 0 or lo_known is None or lo_known < 0:
                lo_known, hi_known = _interval_product((lo_known, hi_known), (a, b))
            else:
                lo_known = lo_known * a
                hi_known = None if hi_known is None or b is None else hi_known * b
        if factor < 0:
            lo_known, hi_known = hi_known, lo_known
        low = None if low is None or lo_known is None else low + factor * lo_known
        high = None if high is None or hi_known is None else high + factor * hi_known
    return low, high


def _interval_product(
    left: tuple[int | None, int | None], right: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    if None in left or None in right:
        return None, None
    corners = [a * b for a in left for b in right if a is not None and b is not None]
    return min(corners), max(corners)


def atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    """Inclusive bounds of one atom."""
    if atom.kind == "axis":
        high = bounds(atom.args[0])[1]
        return 0, None if high is None else max(high - 1, 0)
    if atom.kind in ("sym", "host"):
        return atom.lo, atom.hi
    pairs = [bounds(a) for a in atom.args]
    if atom.kind == "floordiv":
        (lo, hi), (dlo, dhi) = pairs
        if dlo is None or dlo <= 0:
            return None, None
        low = None if lo is None else (lo // dlo if lo < 0 else (0 if dhi is None else lo // dhi))
        return low, None if hi is None else (hi // dlo if hi >= 0 else (-1 if dhi is None else hi // dhi))
    if atom.kind == "mod":
        (lo, hi), (dlo, dhi) = pairs
        if dlo is None or dlo <= 0:
            return None, None
        high = None if dhi is None else dhi - 1
        if lo is not None and lo >= 0 and hi is not None:
            high = hi if high is None else min(high, hi)
        return 0, high
    if atom.kind == "min":
        highs = [h for _, h in pairs if h is not None]
        lows = [lo for lo, _ in pairs]
        return None if None in lows else min(x for x in lows if x is not None), min(highs) if highs else None
    lows_known = [lo for lo, _ in pairs if lo is not None]
    highs_all = [h for _, h in pairs]
    return max(lows_known) if lows_known else None, (
        None if None in highs_all else max(x for x in highs_all if x is not None)
    )


def is_nonnegative(index: IndexLike) -> bool:
    """True only if `index` is provably at least zero for all values of its variables."""
    if isinstance(index, int):
        return index >= 0
    found = index._memo.get("nonnegative")
    if found is None:
        low = bounds(index)[0]
        found = index._memo["nonnegative"] = (low is not None and low >= 0) or _by_extremes(index)
    return bool(found)


def _by_extremes(index: Index) -> bool:
    """Put every axis at the end that makes the index smallest, then compare what is left symbolically."""
    low: IndexLike = index.const
    for monomial, factor in index.terms:
        value: IndexLike = factor
        for atom in monomial:
            end = _lower_end(atom) if factor > 0 else _upper_end(atom)
            if end is None:
                return False
            value = value * end
        low = low + value
    return _all_coefficients_nonnegative(low)


def _lower_end(atom: Atom) -> IndexLike | None:
    if atom.kind == "sym" or atom.kind == "host":
        return of_atom(atom) if atom.lo >= 0 else None
    low = atom_bounds(atom)[0]
    if low is not None and low >= 0:
        return low
    return None


def _upper_end(atom: Atom) -> IndexLike | None:
    if atom.kind == "axis":
        return atom.args[0] - 1 if not isinstance(atom.args[0], int) else max(atom.args[0] - 1, 0)
    if atom.kind == "sym" or atom.kind == "host":
        return of_atom(atom) if atom.lo >= 0 else None
    low, high = atom_bounds(atom)
    if low is None or low < 0:
        return None
    if high is not None:
        return high
    if atom.kind == "mod":
        return atom.args[1] - 1
    if atom.kind == "floordiv":
        return of_atom(atom) if not _has_axis(atom) else None
    return None


def _has_axis(atom: Atom) -> bool:
    return any(free_axes(a) for a in atom.args)


def _all_coefficients_nonnegative(index: IndexLike) -> bool:
    """With each symbol written as its lower bound plus something non-negative, no term pulls below zero."""
    if isinstance(index, int):
        return index >= 0
    total: IndexLike = index.const
    for monomial, factor in index.terms:
        value: IndexLike = factor
        for atom in monomial:
            low = atom_bounds(atom)[0]
            if low is None or low < 0:
                return False
            shifted = Atom("shifted", f"{atom!r}", (), 0, None)
            value = value * (of_atom(shifted) + low)
        total = total + value
    if isinstance(total, int):
        return total >= 0
    return total.const >= 0 and all(factor >= 0 for _, factor in total.terms)


def is_less(left: IndexLike, right: IndexLike) -> bool:
    """True only if ``left < right`` always."""
    return is_nonnegative(right - left - 1)


def is_equal(left: IndexLike, right: IndexLike) -> bool:
    """True only if the two are the same polynomial."""
    return left is right or left == right
