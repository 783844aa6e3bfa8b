"""A case of the kit: a kernel, what to run it on, and what to look at afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node

Operand: TypeAlias = Tensor | int
Operands: TypeAlias = tuple[Operand, ...]


@dataclass(frozen=True)
class Tolerance:
    """How close two results must be.

    Attributes:
        ulp: allowed distance in units in the last place.
        absolute: allowed distance whatever the magnitude.
        relative: allowed distance as a part of the magnitude.
        signed_zero: whether zeros must agree in sign.
    """

    ulp: float = 0
    absolute: float = 0.0
    relative: float = 0.0
    signed_zero: bool = True

    def allowed(self, wanted: Tensor) -> Tensor:
        """The allowed distance of each element, in double precision; integers must be equal."""
        if not wanted.dtype.is_floating_point:
            return torch.zeros(wanted.shape, dtype=torch.float64)
        size = wanted.double().abs()
        allowed = self.absolute + self.relative * size.nan_to_num(posinf=0.0)
        if self.ulp:
            info = torch.finfo(wanted.dtype)
            size = size.clamp(min=info.tiny, max=info.max).nan_to_num(nan=0.0)
            allowed = allowed + self.ulp * info.eps * torch.exp2(size.log2().floor())
        return allowed


EXACT = Tolerance()
LOOSE = Tolerance(absolute=1e-5, relative=1e-4, signed_zero=False)
"""For sums and the like, which may be added up in any order."""


@dataclass(frozen=True)
class Part:
    """One cell of the matrix: one result of a kernel.

    Attributes:
        group, row, column: where it stands in the matrix.
        operand: position of the tensor to look at.
        tolerance: how close it must be.
        expected: computes the truth from the operands where the interpreter's answer is not precise enough;
            a result may agree with either.
        valid: which elements have a defined value, from the operands; all where None.
        slack: further allowed distance of each element, from the operands.
        nodes: graph nodes that compute this part: what the backend is asked to claim.
    """

    group: str
    row: str
    column: str
    operand: int
    tolerance: Tolerance = EXACT
    expected: Callable[[Operands], Tensor] | None = None
    valid: Callable[[Operands], Tensor] | None = None
    slack: Callable[[Operands], Tensor] | None = None
    nodes: tuple[Node, ...] = ()

    @property
    def label(self) -> str:
        """A name for people."""
        return f"{self.group}: {self.row} [{self.column}]" if self.column else f"{self.group}: {self.row}"


@dataclass(frozen=True)
class Case:
    """A kernel with the operands of one or several launches.

    Attributes:
        kernel: what is built.
        runs: operands for each launch; made afresh by each call, always the same.
        parts: what is looked at.
        only: the same case with only some of its parts (by position), where the kernel computes several
            independent things; None where it cannot be split.
        stops: whether a kernel says there that a value from data is wrong, by which a device other than the
            host stops its own program.
        configured: whether it is worth trying in every configuration with outputs over inputs.
    """

    kernel: Kernel
    runs: tuple[Callable[[], Operands], ...]
    parts: tuple[Part, ...]
    only: Callable[[tuple[int, ...]], Case] | None = None
    configured: bool = False
    stops: bool = False

    def split(self) -> tuple[Case, ...]:
        """Two halves of the case, or nothing where it cannot be split."""
        count = len(self.parts)
        if self.only is None or count < 2:
            return ()
        positions = tuple(range(count))
        return self.only(positions[: count // 2]), self.only(positions[count // 2 :])


def grouped(make: Callable[[tuple[int, ...]], Case], count: int) -> Case:
    """The case of all parts, which can be made of any of them."""

    def only(positions: tuple[int, ...]) -> Case:
        return replace(make(positions), only=lambda some: only(tuple(positions[i] for i in some)))

    return only(tuple(range(count)))
