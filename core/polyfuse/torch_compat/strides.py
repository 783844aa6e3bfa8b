"""What strides of tensors say."""

from __future__ import annotations

from collections.abc import Sequence


def has_overlaps(sizes: Sequence[int], strides: Sequence[int], repeated: bool = False) -> bool:
    """Whether two elements may share memory; `repeated`: by repetition too (a stride of zero)."""
    reach = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and (stride or repeated):
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
