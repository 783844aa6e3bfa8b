"""How a launch is timed on a device: what the hook `polyfuse_timer` returns, and what is used without."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfuse.runtime.devices.device import Device, Event

_SAMPLE_SECONDS = 0.002
"""Seconds that one sample takes at least, for launches far shorter than that."""
_LONG_SECONDS = 0.01
"""A launch that takes longer tells enough after a few of them."""
_FEWEST = 3
"""Launches that a sample has at least, unless they are long: during one of fewer, the machine may have done
something else."""

_BUDGET_MS = 12.0
_DEVICE_FEWEST, _DEVICE_MOST = 5, 100
_LEAST_FLUSH = 64 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GUESS = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Timer(ABC):
    """Times launches on one type of device. Each session makes its own; a benchmark worker, another process,
    makes one of its own, too.
    """

    cold_bytes: int = 0
    """What operands that a model finds in no cache must exceed in size: that many bytes of copies are made,
    and launches take them in turn. 0: one set is enough, since the timer empties caches itself or wants them
    warm."""

    one_by_one: bool = False
    """Whether the steps of a candidate of several are timed one by one too, and the smaller sum counts: a
    timer that measures on the device may find launches later than the work."""

    @abstractmethod
    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the milliseconds of one launch.

        Args:
            launches: the same launch on each set of operands, at least one, to be called in turn. Results
                are overwritten. What they raise is raised.
        """


class HostTimer(Timer):
    """Times by the clock of this machine: the median of several launches.

    Args:
        wait: waits until launched work is done; None: launches return when it is.
        cold_bytes: as in `Timer`.
    """

    def __init__(self, wait: Callable[[], object] | None = None, cold_bytes: int = 0) -> None:
        self.cold_bytes = cold_bytes
        self._wait = wait
        self._turn = 0

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the median of as many launches as fit into two milliseconds, and of three at least."""
        taken: list[float] = []
        # on operands that were not used last: they may be in a cache
        turn, now = self._turn, time.perf_counter()
        end, latest = now + _SAMPLE_SECONDS, now + _FEWEST * _LONG_SECONDS
        while now < end or (len(taken) < _FEWEST and now < latest):
            before = now
            launches[turn % len(launches)]()
            if self._wait is not None:
                self._wait()
            now = time.perf_counter()
            taken.append(now - before)
            turn += 1
        self._turn = turn % len(launches)
        # of a few launches, one in which the machine did something else says nothing
        return statistics.median_low(taken) * 1e3


class DeviceTimer(Timer):
    """Times by the clock of the device, each launch after other memory was read through its last cache.

    Were it overwritten instead, the launch would wait for what has to be written back. The reading also
    keeps the device busy while the host queues the launch, so that only the kernel's own time lies between
    the two events.

    Args:
        device_type: its current device is used, by `Device.event` and `Device.synchronize`.
        cache_bytes: of the device's last cache; None: as its properties say.
    """

    one_by_one = True

    def __init__(self, device_type: str, cache_bytes: int | None = None) -> None:
        self.device_type = device_type
        self.cache_bytes = cache_bytes

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the median of as many launches as take about 12 milliseconds."""
        import torch

        device = self._device()
        size = device.properties().cache_bytes if self.cache_bytes is None else self.cache_bytes
        launches[0]()
        device.synchronize()
        flush = torch.zeros(max(3 * size, _LEAST_FLUSH) // 4, device=self.device_type)
        samples = self._samples(device, launches, flush, _DEVICE_FEWEST)
        # what a sample costs is mostly the flush, about as long as a launch that reads as much
        wanted = int(_BUDGET_MS / max(statistics.median(samples) + 0.05, 0.001))
        samples += self._samples(device, launches, flush, min(wanted, _DEVICE_MOST) - _DEVICE_FEWEST)
        return statistics.median(samples)

    def _device(self) -> Device:
        from polyfuse.runtime.devices.registry import device_of  # which imports torch

        return device_of(self.device_type)

    def _samples(
        self, device: Device, launches: Sequence[Callable[[], object]], flush: Any, count: int
    ) -> list[float]:
        pairs: list[tuple[Event, Event]] = []
        for turn in range(count):
            start, end = device.event(), device.event()
            flush.sum()
            start.record()
            launches[turn % len(launches)]()
            end.record()
            pairs.append((start, end))
        device.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]


def default_timer(device_type: str) -> Timer:
    """Return what times launches where no plugin says how: the clock of this machine for what runs on it,
    with operands that are in no cache; else the device's.
    """
    from polyfuse.runtime.devices.registry import device_of  # which imports torch

    if device_of(device_type).is_host:
        return HostTimer(cold_bytes=3 * cache_bytes() // 2)
    return DeviceTimer(device_type)


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
