"""Layouts of new buffers: which strides, and in which order loops run over them."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.lowering.sizes import SizeTable
from polyfuse.symbolic import IndexLike, contiguous_strides, is_equal


def memory_order(size: Sequence[IndexLike], stride: Sequence[IndexLike], sizes: SizeTable) -> tuple[int, ...]:
    """Dimensions of more than one element, by decreasing stride; ties stay in order."""
    wide = [d for d, n in enumerate(size) if n != 1]
    return tuple(sorted(wide, key=lambda d: -sizes.hint(stride[d])))


def is_dense(size: Sequence[IndexLike], stride: Sequence[IndexLike], sizes: SizeTable) -> bool:
    """Whether the elements fill a range of memory, each at an offset of its own."""
    expected: IndexLike = 1
    for d in reversed(memory_order(size, stride, sizes)):
        if not is_equal(stride[d], expected):
            return False
        expected = expected * size[d]
    return True


def storage_layout(
    size: tuple[IndexLike, ...], stride: tuple[IndexLike, ...], sizes: SizeTable
) -> tuple[IndexLike, ...]:
    """Strides for storing a traced tensor: its own where they are dense, else row-major."""
    if 0 in size or not is_dense(size, stride, sizes):
        return contiguous_strides(size)
    return stride
