"""How GEMMs are timed: grouped ones and those of stream-K need care that other kernels do not."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from polyfuse.plugin import Device, Timer

_BUDGET_MS: Final = 12.0
_FEWEST, _MOST = 8, 100
_LEAST_FLUSH: Final = 64 << 20
_MARGIN: Final = 2.0
"""How much longer the GPU reads than the host took to queue a launch: it does not always take the same."""
_MOST_READS: Final = 32


class ProductTimer(Timer):
    """By the clock of a GPU, with cold caches, as `DeviceTimer`, but for two things.

    The GPU reads other memory for as long as the host needs to queue a launch, however long that is: a launch
    of stream-K prepares its arguments on the host and clears the barriers of its blocks, and one of groups
    encodes maps of its operands. Were the GPU done with reading before, the host's time would be counted.

    The result is the mean of the middle half of the samples, not their median: blocks that wait for sums of
    other blocks, or find their groups themselves, take now longer, now shorter, and a model takes the mean.

    Args:
        device: whose events and caches these are.
    """

    one_by_one = True

    def __init__(self, device: Device) -> None:
        self._device = device

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the milliseconds of one launch."""
        import torch

        size = max(3 * self._device.properties().cache_bytes, _LEAST_FLUSH)
        flush = torch.zeros(size // 4, device=self._device.type)
        for launch in launches:
            launch()
        self._device.synchronize()
        reading = self._between(flush.sum)
        reads = self._reads(launches, reading)
        samples = self._samples(launches, flush, reads, _FEWEST)
        each = statistics.median(samples) + reads * reading
        wanted = int(_BUDGET_MS / max(each, 0.001))
        samples += self._samples(launches, flush, reads, min(wanted, _MOST) - _FEWEST)
        rest = len(samples) // 4
        return statistics.fmean(sorted(samples)[rest : len(samples) - rest])

    def _reads(self, launches: Sequence[Callable[[], object]], reading: float) -> int:
        """How often other memory is read before a launch, if reading takes so many milliseconds."""
        taken: list[float] = []
        for turn in range(3):
            before = time.perf_counter()
            launches[turn % len(launches)]()
            taken.append(time.perf_counter() - before)
            self._device.synchronize()
        queued = statistics.median(taken) * 1e3
        return min(max(1, math.ceil(_MARGIN * queued / max(reading, 0.001))), _MOST_READS)

    def _between(self, action: Callable[[], object]) -> float:
        """Milliseconds of the GPU for something that it does for the second time."""
        action()
        start, end = self._device.event(), self._device.event()
        start.record()
        action()
        end.record()
        self._device.synchronize()
        return start.elapsed_time(end)

    def _samples(
        self, launches: Sequence[Callable[[], object]], flush: Any, reads: int, count: int
    ) -> list[float]:
        pairs = []
        for turn in range(count):
            start, end = self._device.event(), self._device.event()
            for _ in range(reads):
                flush.sum()
            start.record()
            launches[turn % len(launches)]()
            end.record()
            pairs.append((start, end))
        self._device.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]
