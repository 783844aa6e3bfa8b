"""What code generators ask of index expressions: steps, offsets, divisibility, width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from polyfuse.kit.spans import fits_i32, known_range
from polyfuse.symbolic import Index, IndexLike, axis_name, axis_size, coefficient, free_axes
from polyfuse.symbolic.index import make


def stride(index: IndexLike, axis: str) -> IndexLike | None:
    """Elements from one point of an axis to the next; None where that differs from point to point."""
    step = coefficient(index, axis)
    return None if step is None or free_axes(step) else step


@dataclass(frozen=True)
class Affine:
    """An index as ``offset + sum(stride * axis)``, with a stride for each axis asked about."""

    offset: IndexLike
    strides: tuple[IndexLike, ...]


def affine(index: IndexLike, axes: Sequence[Index]) -> Affine | None:
    """An index as an affine function of some axes; None where it is none, or uses other axes."""
    offset = index
    strides: list[IndexLike] = []
    for axis in axes:
        step = stride(index, axis_name(axis))
        if step is None:
            return None
        strides.append(step)
        offset = offset - step * axis
    return None if free_axes(offset) else Affine(offset, tuple(strides))


def row_major(axes: Iterable[Index]) -> IndexLike:
    """The number of a point among those of some axes, outermost axis first."""
    position: IndexLike = 0
    for axis in axes:
        position = position * axis_size(axis) + axis
    return position


def is_multiple(index: IndexLike, number: int) -> bool:
    """Whether every value of an index is a multiple of a number, as far as its factors show."""
    if isinstance(index, int):
        return index % number == 0
    return index.const % number == 0 and all(factor % number == 0 for _, factor in index.terms)


def fits_i32_throughout(index: IndexLike) -> bool:
    """Whether an index, each of its terms, and every index inside its functions is a 32-bit integer, so that
    it can be computed with 32 bits.
    """
    if not fits_i32(known_range(index)):
        return False
    if isinstance(index, int):
        return True
    terms = (make({monomial: factor}, 0) for monomial, factor in index.terms)
    inside = (
        argument
        for monomial, _ in index.terms
        for atom in monomial
        if atom.kind not in ("axis", "sym", "host")
        for argument in atom.args
    )
    return all(fits_i32(known_range(term)) for term in terms) and all(map(fits_i32_throughout, inside))
