"""Comparison of results: one for checked launches, the conformance kit, replays and tuning.

Distances are double precision, whatever the type of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ZERO = 1e-30
"""The bound of a zero that may have either sign; one with no bound at all has its own."""


def apart(one: Tensor, other: Tensor) -> Tensor:
    """How far two results are apart: nothing where they are equal or both are NaN, infinitely where only one
    of them is, or where only one is infinite.
    """
    a, b = one.double(), other.double()
    distance = (a - b).abs()
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, distance.nan_to_num(nan=torch.inf))


def of_unknown_sign(value: Tensor, error: Tensor) -> Tensor:
    """Whether a value is a zero, or may be one, whose sign is not known."""
    return (error >= value.double().abs()) & (error > 0)


def spread(value: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number that a value may be."""
    if value.dtype is torch.bool:
        return value, value ^ (error > 0)
    finite = error.nan_to_num(0.0, 0.0)
    wide = value.double()
    if not value.dtype.is_floating_point:
        limits = torch.iinfo(value.dtype)
        low, high = (wide - finite).clamp(min=float(limits.min)), (wide + finite).clamp(max=float(limits.max))
        # beyond what double precision holds exactly, the value itself
        moved = finite > 0
        return (
            torch.where(moved, low, 0.0).to(value.dtype).where(moved, value),
            torch.where(moved, high, 0.0).to(value.dtype).where(moved, value),
        )
    return (wide - finite).to(value.dtype), (wide + finite).to(value.dtype)


@dataclass(frozen=True)
class Mismatch:
    """The element of a result that is farthest off.

    Attributes:
        name: of the result.
        index: of the element.
        got, expected: its values.
        bound: how far it may be off.
        count, total: how many elements differ, and how many were compared.
    """

    name: str
    index: tuple[int, ...]
    got: object
    expected: object
    bound: float
    count: int
    total: int

    def __str__(self) -> str:
        where = ", ".join(map(str, self.index))
        return (
            f"{self.name}[{where}] is {self.got}, not {self.expected}"
            + (f" (within {self.bound:.3g})" if self.bound else "")
            + f"; {self.count} of {self.total} elements differ"
        )


def agree(found: Tensor, wanted: Tensor, allowed: Tensor, signed: Tensor | bool = True) -> Tensor:
    """Which elements agree: equal, both NaN, or apart by at most what is allowed.

    Args:
        found, wanted: results of equal size and type.
        allowed: of each element, in double precision; infinity allows anything.
        signed: whether zeros must have the same sign.
    """
    a, b = found.double(), wanted.double()
    near = (a - b).abs() <= allowed * (1 + 1e-6)
    if not found.dtype.is_floating_point:
        # double precision does not hold every integer
        return same_bits(found, wanted) | near & (allowed > 0)
    other_sign = (a == 0) & (b == 0) & (a.signbit() != b.signbit()) & signed
    return ((a == b) | (a.isnan() & b.isnan()) | near) & ~other_sign | (allowed == torch.inf)


def same_bits(one: Tensor, other: Tensor) -> Tensor:
    """Which elements of two tensors of equal size and type are the same, bit by bit."""
    rows = (t.reshape(-1).view(torch.uint8).reshape(t.numel(), t.element_size()) for t in (one, other))
    first, second = rows
    return (first == second).all(-1).reshape(one.shape)


def mismatch(
    name: str, found: Tensor, wanted: Tensor, allowed: Tensor, good: Tensor, total: int = 0
) -> Mismatch | None:
    """The worst of the elements that are not `good`; None where all are.

    Args:
        name: of the result.
        found, wanted, allowed: as `agree` takes them.
        good: what it returned.
        total: how many elements were compared; 0: all.
    """
    if bool(good.all()):
        return None
    wrong = (~good).nonzero()
    distance = (found[~good].double() - wanted[~good].double()).abs().nan_to_num(nan=torch.inf)
    index = tuple(wrong[int(distance.argmax())].tolist())
    values = [t[index] for t in (found, wanted)]
    got, expected = (v.double().item() if v.dtype.is_floating_point else v.item() for v in values)
    total = max(total or good.numel(), len(wrong))
    return Mismatch(name, index, got, expected, float(allowed[index]), len(wrong), total)
