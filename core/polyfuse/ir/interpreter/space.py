"""Iteration spaces as broadcast tensors, and indices evaluated over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from polyfuse.base.errors import IRError
from polyfuse.symbolic import Atom, Index, IndexLike, axis_name, axis_size, evaluate, of_atom

Number: TypeAlias = int | Tensor


@dataclass(frozen=True)
class Space:
    """A part of an iteration space: every axis is one dimension, reduction axes come last.

    Attributes:
        axes: names of the parallel axes.
        raxes: names of the reduction axes.
        starts: first value of each axis, in the order axes + raxes.
        lengths: number of values of each.
        device: where values live.
    """

    axes: tuple[str, ...]
    raxes: tuple[str, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    device: torch.device

    @property
    def rank(self) -> int:
        """Number of dimensions of a value."""
        return len(self.lengths)

    @property
    def outer(self) -> tuple[int, ...]:
        """Lengths of the parallel axes."""
        return self.lengths[: len(self.axes)]

    def shape(self, looped: bool) -> tuple[int, ...]:
        """Shape of a value that is different at every point, with or without the reduction axes."""
        return self.lengths if looped else self.outer + (1,) * len(self.raxes)

    def variables(self) -> dict[str, Tensor]:
        """Each axis as a tensor that varies along its own dimension alone."""
        found: dict[str, Tensor] = {}
        for dim, (name, start, length) in enumerate(
            zip(self.axes + self.raxes, self.starts, self.lengths, strict=True)
        ):
            shape = [1] * self.rank
            shape[dim] = length
            values = torch.arange(start, start + length, dtype=torch.int64, device=self.device)
            found[name] = values.reshape(shape)
        return found

    def points(self) -> Tensor:
        """A number for each parallel point, counted from zero in this part."""
        count = torch.tensor(self.outer, dtype=torch.int64).prod().item()
        numbers = torch.arange(int(count), dtype=torch.int64, device=self.device)
        return numbers.reshape(self.shape(False))


def spaces(
    axes: Sequence[Index],
    raxes: Sequence[Index],
    sizes: Mapping[str, int],
    device: torch.device,
    limit: int,
) -> Iterator[Space]:
    """The iteration space in parts of about `limit` points, split along the outermost parallel axes."""
    outer = [evaluate(axis_size(a), sizes) for a in axes]
    inner = [evaluate(axis_size(a), sizes) for a in raxes]
    steps = list(outer)
    points = 1
    for n in outer + inner:
        points *= max(n, 1)
    for dim, n in enumerate(outer):
        if points <= limit:
            break
        rest = points // max(n, 1)
        steps[dim] = max(1, limit // rest)
        points = rest * steps[dim]
    names = tuple(axis_name(a) for a in axes)
    rnames = tuple(axis_name(a) for a in raxes)
    for starts in _corners(outer, steps):
        lengths = tuple(min(s, n - at) for s, n, at in zip(steps, outer, starts, strict=True))
        yield Space(names, rnames, starts + (0,) * len(inner), lengths + tuple(inner), device)


def _corners(sizes: list[int], steps: list[int]) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for start in range(0, sizes[0], max(steps[0], 1)):
        for rest in _corners(sizes[1:], steps[1:]):
            yield (start, *rest)


def index_values(index: IndexLike, values: Mapping[str, Number]) -> Number:
    """The value of an index at every point, given that of its variables and symbols."""
    if isinstance(index, int):
        return index
    total: Number = index.const
    for monomial, factor in index.terms:
        product: Number = factor
        for atom in monomial:
            product = product * _atom_values(atom, values)
        total = total + product
    return total


def _atom_values(atom: Atom, values: Mapping[str, Number]) -> Number:
    if atom.kind in ("axis", "sym"):
        if atom.name not in values:
            raise IRError(f"variable {atom.name!r} of an index has no value here")
        return values[atom.name]
    if atom.kind == "host":
        known = {name: value for name, value in values.items() if isinstance(value, int)}
        return evaluate(of_atom(atom), known)
    operands = [index_values(a, values) for a in atom.args]
    first = operands[0]
    if atom.kind == "floordiv":
        return first // operands[1]
    if atom.kind == "mod":
        return first % operands[1]
    if atom.kind not in ("min", "max"):
        raise IRError(f"the index function {atom.kind!r} of {atom} is unknown")
    for other in operands[1:]:
        if isinstance(first, int) and isinstance(other, int):
            first = min(first, other) if atom.kind == "min" else max(first, other)
        else:
            pair = [t if isinstance(t, Tensor) else torch.tensor(t) for t in (first, other)]
            first = torch.minimum(*pair) if atom.kind == "min" else torch.maximum(*pair)
    return first
