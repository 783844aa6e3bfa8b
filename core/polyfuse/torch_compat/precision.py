"""Whether torch lets products of float32 be computed with fewer bits."""

from __future__ import annotations

import torch

__all__ = ["rounds_convolutions", "rounds_products"]


def rounds_products(device: str) -> bool:
    """Whether float32 operands of matrix products on a device may be rounded to ten bits of fraction."""
    return not device.startswith("cpu") and torch.get_float32_matmul_precision() != "highest"


def rounds_convolutions(device: str) -> bool:
    """Whether float32 operands of convolutions on a device may be rounded to ten bits of fraction."""
    return not device.startswith("cpu") and bool(torch.backends.cudnn.allow_tf32)
