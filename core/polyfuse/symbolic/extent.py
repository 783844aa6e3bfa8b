"""Strides of plain layouts, how many elements a layout reaches, and sizes for example inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyfuse.symbolic.index import IndexLike, free_symbols
from polyfuse.symbolic.text import evaluate

__all__ = ["contiguous_strides", "example_value", "storage_size"]

# A guess for a size that only the data tells.
_UNKNOWN_SIZE = 64


def storage_size(size: Sequence[IndexLike], stride: Sequence[IndexLike]) -> IndexLike:
    """Elements from the first to the last that a layout reaches; 0 for an empty tensor."""
    if any(n == 0 for n in size):
        return 0
    total: IndexLike = 1
    for n, step in zip(size, stride, strict=True):
        total = total + (n - 1) * step
    return total


def example_value(index: IndexLike, hints: Mapping[str, int]) -> int:
    """The value of a size for the example inputs; a guess where the data decides."""
    if isinstance(index, int):
        return index
    values = {name: hints.get(name, _UNKNOWN_SIZE) for name in free_symbols(index)}
    return evaluate(index, values)


def contiguous_strides(size: Sequence[IndexLike]) -> tuple[IndexLike, ...]:
    """Strides of a tensor that fills memory row by row, as torch counts them: an empty dimension counts as
    one of one element.
    """
    strides: list[IndexLike] = []
    step: IndexLike = 1
    for n in reversed(size):
        strides.append(step)
        if n != 0:
            step = step * n
    return tuple(reversed(strides))
