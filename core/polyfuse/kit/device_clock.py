"""Timing a launch by the clock of the device itself, with cold caches."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polyfuse.runtime.devices.device import Device, Event
from polyfuse.runtime.devices.registry import device_of

__all__ = ["device_milliseconds"]

_BUDGET_MS = 25.0
_FEWEST, _MOST = 5, 100
_LEAST_FLUSH = 64 << 20


def device_milliseconds(
    launch: Callable[..., object], args: Sequence[object], device: str, cache_bytes: int
) -> float:
    """The median of several launches, each after other memory was read through the last cache.

    Were it overwritten instead, the launch would wait for what has to be written back. The reading also
    keeps the device busy while the host queues the launch, so that only the kernel's own time lies between
    the two events.

    Args:
        device: its type; its current one is used.
        cache_bytes: of the device's last cache.
    """
    where = device_of(device)
    launch(*args)
    where.synchronize()
    flush = torch.zeros(max(3 * cache_bytes, _LEAST_FLUSH) // 4, device=device)
    samples = _sample(where, launch, args, flush, _FEWEST)
    # what a sample costs is mostly the flush, about as long as a launch that reads as much
    wanted = int(_BUDGET_MS / max(statistics.median(samples) + 0.05, 0.001))
    samples += _sample(where, launch, args, flush, min(wanted, _MOST) - _FEWEST)
    return statistics.median(samples)


def _sample(
    device: Device, launch: Callable[..., object], args: Sequence[object], flush: Any, count: int
) -> list[float]:
    pairs: list[tuple[Event, Event]] = []
    for _ in range(count):
        start, end = device.event(), device.event()
        flush.sum()
        start.record()
        launch(*args)
        end.record()
        pairs.append((start, end))
    device.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]
