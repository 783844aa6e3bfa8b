"""What strides of tensors say."""

from __future__ import annotations

import torch


def has_overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory other than by repetition (a stride of zero)."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False
