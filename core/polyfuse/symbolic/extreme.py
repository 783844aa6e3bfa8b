"""The smallest and the largest of several indices."""

from __future__ import annotations

from collections.abc import Callable

from polyfuse.symbolic.bounds import is_nonnegative
from polyfuse.symbolic.index import Atom, IndexLike, as_atom, of_atom


def minimum(*operands: IndexLike) -> IndexLike:
    """The smallest operand."""
    return _extreme("min", operands, min)


def maximum(*operands: IndexLike) -> IndexLike:
    """The largest operand."""
    return _extreme("max", operands, max)


def _extreme(kind: str, operands: tuple[IndexLike, ...], fold: Callable[..., int]) -> IndexLike:
    known: list[int] = []
    rest: list[IndexLike] = []
    for operand in _flat(kind, operands):
        if isinstance(operand, int):
            known.append(operand)
        elif operand not in rest:
            rest.append(operand)
    if known:
        rest.append(fold(known))
    sign = 1 if kind == "max" else -1
    remaining: list[IndexLike] = []
    for i, operand in enumerate(rest):
        # of two operands that are always equal, the later one stays
        beaten = any(is_nonnegative((other - operand) * sign) for other in rest[i + 1 :]) or any(
            is_nonnegative((other - operand) * sign) for other in remaining
        )
        if not beaten:
            remaining.append(operand)
    if len(remaining) == 1:
        return remaining[0]
    return of_atom(Atom(kind, "", tuple(sorted(remaining, key=str))))


def _flat(kind: str, operands: tuple[IndexLike, ...]) -> list[IndexLike]:
    flat: list[IndexLike] = []
    for operand in operands:
        atom = as_atom(operand)
        flat.extend(atom.args if atom is not None and atom.kind == kind else (operand,))
    return flat
