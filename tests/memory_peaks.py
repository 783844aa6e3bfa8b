"""How much memory of torch's a call holds at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyfuse_bench.memory import torch_peak

__all__ = ["peak"]


def peak(step: Callable[[], Any]) -> int:
    """Most bytes that a call holds at once beyond what there was before it, when it has run before."""
    for _ in range(2):
        step()
    return torch_peak(step)
