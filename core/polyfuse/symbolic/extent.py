"""Row-major indices and strides, how many elements a layout reaches, and sizes for example inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from polyfuse.symbolic.index import Index, IndexLike, axis_name, axis_size, free_symbols
from polyfuse.symbolic.text import evaluate

# A guess for an unbacked symbol.
_UNKNOWN_SIZE = 64


def flat_index(indices: Sequence[IndexLike], size: Sequence[IndexLike] = ()) -> IndexLike:
    """The row-major index of an element. Without `size`, `indices` are axes."""
    total: IndexLike = 0
    for index, extent in zip(indices, size or map(axis_size, indices), strict=True):
        total = total * extent + index
    return total


def unflattened(index: IndexLike, axes: Sequence[Index]) -> dict[str, IndexLike]:
    """Each axis, by name, in terms of the row-major index of a point; empty for no axes."""
    found: dict[str, IndexLike] = {}
    for var in reversed(axes[1:]):
        found[axis_name(var)] = index % axis_size(var)
        index = index // axis_size(var)
    return found | {axis_name(var): index for var in axes[:1]}


def storage_size(size: Sequence[IndexLike], stride: Sequence[IndexLike]) -> IndexLike:
    """Elements from the first to the last that a layout reaches; 0 for an empty tensor."""
    return _storage_size(tuple(size), tuple(stride))


@lru_cache(4096)
def _storage_size(size: tuple[IndexLike, ...], stride: tuple[IndexLike, ...]) -> IndexLike:
    if 0 in size:
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
