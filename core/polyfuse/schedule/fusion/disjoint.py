"""Indices at which no two points of an iteration space access one element."""

from __future__ import annotations

from math import gcd

from polyfuse.symbolic import Index, IndexLike, atoms, coefficient


def disjoint(a: IndexLike, b: IndexLike) -> bool:
    """Whether two indices of equal form are disjoint: at no two points are they equal. Those of tensors that
    are concatenated are: they differ by a constant that inner axes do not reach and outer ones step over.
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


def interleaved(a: IndexLike, b: IndexLike) -> bool:
    """Whether two indices of equal form lie between the steps of every axis, as those of tensors that are
    stacked along the last dimension do: they share cache lines.
    """
    away = b - a
    if not isinstance(a, Index) or not isinstance(away, int) or not away:
        return False
    steps = [coefficient(a, atom.name) if atom.kind == "axis" else None for atom in atoms(a)]
    return all(isinstance(step, int) and abs(step) > abs(away) for step in steps)
