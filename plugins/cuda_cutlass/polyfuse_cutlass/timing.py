"""Timing a launch on the device itself, with cold caches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from polyfuse_cutlass.target import Target

__all__ = ["device_milliseconds"]

_BUDGET_MS = 25.0
_FEWEST, _MOST = 5, 100
_LEAST_FLUSH = 64 << 20


def device_milliseconds(launch: Callable[..., object], args: Sequence[object], target: Target) -> float:
    """The median of several launches, each after other memory was read through the last cache.

    Were it overwritten instead, the launch would wait for what has to be written back. That also gives the
    host time to queue the launch, so that only the kernel's own time lies between the two events.
    """
    import torch

    flush = torch.zeros(max(3 * target.l2_bytes, _LEAST_FLUSH) // 4, device="cuda")

    def samples(count: int) -> list[float]:
        pairs = []
        for _ in range(count):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flush.sum()
            start.record()
            launch(*args)
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    launch(*args)
    torch.cuda.synchronize()
    taken = samples(_FEWEST)
    # what a sample costs is mostly the flush
    wanted = int(_BUDGET_MS / max(statistics.median(taken) + 0.05, 0.001))
    taken += samples(max(0, min(wanted, _MOST) - _FEWEST))
    return statistics.median(taken)
