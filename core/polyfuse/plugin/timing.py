"""How a launch is timed on a device: what the hook `polyfuse_timer` returns, and what is used without."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["DeviceTimer", "HostTimer", "Timer", "cache_bytes", "default_timer"]

_SAMPLE_SECONDS = 0.002
"""Seconds that one sample takes at least, for launches far shorter than that."""
_LONG_SECONDS = 0.01
"""A launch that takes longer tells enough after a few of them."""
_FEWEST = 3
"""Launches that a sample has at least, unless they are long: during one of fewer, the machine may have done
something else."""

_BUDGET_MS = 25.0
_DEVICE_FEWEST, _DEVICE_MOST = 5, 100
_LEAST_FLUSH = 64 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GUESS = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Timer(ABC):
    """Times launches of one backend's kernels on one type of device. Each session makes its own; a benchmark
    worker calls it in a process of its own.
    """

    cold_bytes: int = 0
    """What operands that a model finds in no cache must exceed in size: that many bytes of copies are made,
    and launches take them in turn. 0: one set is enough, since the timer empties caches itself or wants them
    warm."""

    @abstractmethod
    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the milliseconds of one launch.

        Args:
            launches: the same launch on each set of operands, at least one, to be called in turn. Results
                are overwritten. What they raise is raised.
        """

    def synchronize(self) -> None:  # noqa: B027 - a default that does nothing, not a missing one
        """Wait until all launched work is done. By default, launches are taken to return when done."""


class HostTimer(Timer):
    """By the clock of this machine: the median of several launches.

    Args:
        wait: waits until launched work is done.
        cold_bytes: as in `Timer`.
    """

    def __init__(self, wait: Callable[[], object] | None = None, cold_bytes: int = 0) -> None:
        self.cold_bytes = cold_bytes
        self._wait = wait

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the median of as many launches as fit into two milliseconds, and of three at least."""
        taken: list[float] = []
        now = time.perf_counter()
        end, latest = now + _SAMPLE_SECONDS, now + _FEWEST * _LONG_SECONDS
        while now < end or (len(taken) < _FEWEST and now < latest):
            before = now
            launches[len(taken) % len(launches)]()
            self.synchronize()
            now = time.perf_counter()
            taken.append(now - before)
        # of a few launches, one in which the machine did something else says nothing
        return statistics.median_low(taken) * 1e3

    def synchronize(self) -> None:
        """Wait as told."""
        if self._wait is not None:
            self._wait()


class DeviceTimer(Timer):
    """By the clock of the device, each launch after other memory was read through its last cache.

    Were it overwritten instead, the launch would wait for what has to be written back. The reading also
    keeps the device busy while the host queues the launch, so that only the kernel's own time lies between
    the two events.

    Args:
        device_type: which torch has a module with events for; its current device is used.
        cache_bytes: of the device's last cache.
    """

    def __init__(self, device_type: str, cache_bytes: int = 0) -> None:
        self.device_type = device_type
        self.cache_bytes = cache_bytes

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the median of as many launches as take about 25 milliseconds."""
        import torch

        launches[0]()
        self.synchronize()
        count = max(3 * self.cache_bytes, _LEAST_FLUSH) // 4
        flush = torch.zeros(count, device=self.device_type)
        samples = self._samples(launches, flush, _DEVICE_FEWEST)
        # what a sample costs is mostly the flush, about as long as a launch that reads as much
        wanted = int(_BUDGET_MS / max(statistics.median(samples) + 0.05, 0.001))
        samples += self._samples(launches, flush, min(wanted, _DEVICE_MOST) - _DEVICE_FEWEST)
        return statistics.median(samples)

    def synchronize(self) -> None:
        """Wait for the current device."""
        _module(self.device_type).synchronize()

    def _samples(self, launches: Sequence[Callable[[], object]], flush: Any, count: int) -> list[float]:
        module = _module(self.device_type)
        pairs: list[tuple[Any, Any]] = []
        for turn in range(count):
            start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
            flush.sum()
            start.record()
            launches[turn % len(launches)]()
            end.record()
            pairs.append((start, end))
        self.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


def default_timer(device_type: str) -> Timer:
    """Return what times launches where no plugin says how: by the device's clock where torch has events for
    it, else by the host's.
    """
    if device_type == "cpu":
        return HostTimer(cold_bytes=3 * cache_bytes() // 2)
    module = _module(device_type)
    if hasattr(module, "Event"):
        return DeviceTimer(device_type)
    return HostTimer(getattr(module, "synchronize", None))


@cache
def cache_bytes(folder: Path = _CACHES) -> int:
    """Return the bytes of the CPU's last cache; a guess where the system does not say."""
    largest = 0
    for path in folder.glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            largest = max(largest, int(text.rstrip("KMG")) * _UNITS.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return largest or _GUESS


def _module(device_type: str) -> Any:
    """What torch has for a type of device; None if nothing."""
    import torch

    try:
        return torch.get_device_module(device_type)
    except (RuntimeError, AttributeError):
        return None
