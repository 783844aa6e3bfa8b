"""Places that no two points share."""

from __future__ import annotations

from math import gcd

from polyfuse.symbolic import Index, IndexLike, atoms, coefficient

__all__ = ["never_meet", "take_turns"]


def never_meet(a: IndexLike, b: IndexLike) -> bool:
    """Whether two indices of equal form are apart at any two points, as those of parts that are joined along
    an axis are: they differ by a constant that the inner axes do not bridge and the outer ones step over.
    """
    away = b - a
    if not isinstance(a, Index) or not isinstance(away, int) or not away:
        return False
    distance, span, outer = abs(away), 0, 0
    for atom in atoms(a):
        step, size = coefficient(a, atom.name), atom.args[0] if atom.kind == "axis" else None
        if not isinstance(step, int) or not isinstance(size, int):
            return False
        if abs(step) > distance:
            outer = gcd(outer, step)
        else:
            span += abs(step) * (size - 1)
    return span < distance and (not outer or distance + span < outer)


def take_turns(a: IndexLike, b: IndexLike) -> bool:
    """Whether two indices of equal form lie side by side between the steps of every axis, as those of tensors
    that are stacked along the last dimension do: they share lines of the caches.
    """
    away = b - a
    if not isinstance(a, Index) or not isinstance(away, int) or not away:
        return False
    steps = [coefficient(a, atom.name) if atom.kind == "axis" else None for atom in atoms(a)]
    return all(isinstance(step, int) and abs(step) > abs(away) for step in steps)
