"""The most memory that a process, or the device that it computes on, has had in use."""

from __future__ import annotations

import resource
import sys

from polyfuse.runtime.devices.registry import device_of


class PeakMemory:
    """Bytes in use at most since this was made, above what was in use then.

    Args:
        device_type: whose memory; of the host, the memory that is resident.
    """

    def __init__(self, device_type: str) -> None:
        self._device = device_of(device_type)
        self._before = self._now()

    def peak(self) -> int:
        """Bytes so far."""
        return max(0, self._now() - self._before)

    def _now(self) -> int:
        found = None if self._device.is_host else self._device.memory()
        return found.peak if found is not None else resident_peak()


def resident_peak() -> int:
    """The most bytes of this process that were in memory at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
