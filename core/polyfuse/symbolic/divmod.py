"""Floor division and modulo of index expressions, simplified by divisibility and bounds."""

from __future__ import annotations

from math import gcd

from polyfuse.symbolic.bounds import is_less, is_nonnegative
from polyfuse.symbolic.index import Atom, Index, IndexLike, Monomial, as_atom, install_division, make, of_atom


def floordiv(a: IndexLike, b: IndexLike) -> IndexLike:
    """``a // b`` rounded down, as in Python.

    Raises:
        ZeroDivisionError: `b` is the number 0.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"the index {a} is divided by zero: a size of zero reached an index")
        if isinstance(a, int):
            return a // b
        if b == 1:
            return a
        if b < 0:
            return floordiv(-a, -b)
    elif a == 0:
        return 0
    quotient, rest = _split(a, b)
    if rest == 0:
        return quotient
    if is_nonnegative(rest) and is_less(rest, b):
        return quotient
    x, y, _, _ = _reduce(rest, b)
    if y == 1:
        return quotient + x
    inner = as_atom(x)
    if inner is not None and inner.kind == "floordiv" and is_nonnegative(inner.args[1]) and is_nonnegative(y):
        return quotient + floordiv(inner.args[0], inner.args[1] * y)
    if isinstance(x, int) and isinstance(y, int):
        return quotient + x // y
    again, remaining = _split(x, y)
    if again != 0:
        return quotient + again + floordiv(remaining, y)
    return quotient + of_atom(Atom("floordiv", "", (x, y)))


def mod(a: IndexLike, b: IndexLike) -> IndexLike:
    """``a % b`` with the sign of `b`, as in Python.

    Raises:
        ZeroDivisionError: `b` is the number 0.
    """
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisionError(f"the index {a} is taken modulo zero: a size of zero reached an index")
        if isinstance(a, int):
            return a % b
        if b == 1:
            return 0
        if b < 0:
            return -mod(-a, -b)
    elif a == 0:
        return 0
    _, rest = _split(a, b)
    if isinstance(rest, int) and isinstance(b, int):
        return rest % b
    if rest == 0:
        return 0
    if is_nonnegative(rest) and is_less(rest, b):
        return rest
    x, y, factor, small = _reduce(rest, b)
    if y == 1:
        return small
    if factor != 1:
        return mod(x, y) * factor + small
    inner = as_atom(rest)
    if inner is not None and inner.kind == "mod" and _split(inner.args[1], b)[1] == 0:
        return mod(inner.args[0], b)
    return of_atom(Atom("mod", "", (rest, b)))


def _split(a: IndexLike, b: IndexLike) -> tuple[IndexLike, IndexLike]:
    """``a == b * quotient + rest``, with everything plainly divisible by `b` in the quotient."""
    if isinstance(a, int):
        if isinstance(b, int):
            return a // b, a % b
        return 0, a
    quotient: IndexLike = 0
    rest: dict[Monomial, int] = {}
    if isinstance(b, int):
        divided: dict[Monomial, int] = {}
        for monomial, factor in a.terms:
            if factor % b == 0:
                divided[monomial] = factor // b
            else:
                # the rest's coefficient stays in [0, b), so that bounds see a small non-negative rest
                whole = factor // b if factor < 0 or factor > b else 0
                if whole:
                    divided[monomial] = whole
                rest[monomial] = factor - whole * b
        return make(divided, a.const // b), make(rest, a.const % b)
    if a == b:
        return 1, 0
    if len(b.terms) == 1 and b.const == 0:
        divisor, scale = b.terms[0]
        for monomial, factor in a.terms:
            left = _without(monomial, divisor)
            if left is not None and factor % scale == 0:
                quotient = quotient + (make({left: factor // scale}, 0) if left else factor // scale)
            else:
                rest[monomial] = factor
        return quotient, make(rest, a.const)
    return _split_by_sum(a, b)


def _split_by_sum(a: Index, b: Index) -> tuple[IndexLike, IndexLike]:
    """Long division by a sum, on the leading term, as far as it goes evenly."""
    lead, scale = b.terms[0]
    quotient: IndexLike = 0
    rest: IndexLike = a
    for monomial, factor in a.terms:
        left = _without(monomial, lead)
        if left is None or factor % scale:
            continue
        step: IndexLike = make({left: factor // scale}, 0) if left else factor // scale
        trial = rest - step * b
        if _size(trial) < _size(rest):
            quotient, rest = quotient + step, trial
    return quotient, rest


def _size(index: IndexLike) -> int:
    return 0 if isinstance(index, int) else len(index.terms) + (index.const != 0)


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _reduce(a: IndexLike, b: IndexLike) -> tuple[IndexLike, IndexLike, int, IndexLike]:
    """Common factors out: ``a // b == x // y`` and ``a % b == (x % y) * factor + small``."""
    if not isinstance(b, int) or isinstance(a, int):
        return a, b, 1, 0
    best: tuple[IndexLike, IndexLike, int, IndexLike] = (a, b, 1, 0)
    candidates = {gcd(factor, b) for _, factor in a.terms}
    for g in sorted(candidates, reverse=True):
        if g <= 1:
            continue
        large: dict[Monomial, int] = {}
        small: dict[Monomial, int] = {}
        for monomial, factor in a.terms:
            (large if factor % g == 0 else small)[monomial] = factor
        low = make(small, a.const % g)
        if is_nonnegative(low) and is_less(low, g):
            x = make({m: c // g for m, c in large.items()}, a.const // g)
            return x, b // g, g, low
    return best


install_division(floordiv, mod)
