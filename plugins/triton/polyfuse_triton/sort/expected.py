"""What sorting has to give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from polyfuse.plugin import Expected


def expected_order(dim: int, descending: bool, stored: int, *operands: Any) -> Expected:
    """The sorted numbers and their positions, which nothing rounds: of equal numbers the first comes first.

    Args:
        dim: along which rows lie.
        descending: whether the largest come first.
        stored: how many of each row are wanted.
        operands: the numbers, the sorted numbers, their positions, and sizes.
    """
    x: Tensor = operands[0]
    zero = torch.zeros(operands[1].shape, dtype=torch.float64, device=x.device)
    found = torch.sort(x, dim=dim, descending=descending, stable=True)
    results = {at: (order.narrow(dim, 0, stored), zero) for at, order in enumerate(found, 1)}
    if stored < x.shape[dim]:
        return Expected("aten.topk.default", (x, stored, dim, descending, True), {}, results)
    named = {"stable": True, "dim": dim, "descending": descending}
    return Expected("aten.sort.stable", (x,), named, results)
