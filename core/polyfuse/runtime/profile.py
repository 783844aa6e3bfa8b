"""What each kernel takes and how fast it moves memory, printed when the process ends (option `profile`)."""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from polyfuse.runtime.devices.registry import device_of

__all__ = ["Meter", "forget", "metered", "report"]

# Pairs of events that wait to be read; a device keeps what they need until then.
_WAITING = 512

_LOCK = threading.Lock()
_METERS: dict[tuple[str, str], Meter] = {}


class Meter:
    """Counts, times and bytes of one kernel.

    Attributes:
        name: of the kernel.
        launches: how often it ran.
        milliseconds: of all launches together, by the device's own clock.
        nbytes: that its arguments hold, of all launches together; what is read and written counts twice.
    """

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.launches = 0
        self.nbytes = 0
        self._seconds = 0.0
        self._device = device_of(device)
        self._waiting: deque[tuple[Any, Any]] = deque()

    @property
    def milliseconds(self) -> float:
        """Waits for launches that still run."""
        self._read(0)
        return self._seconds * 1e3

    def run(self, kernel: Callable[..., Any], operands: Sequence[Any], nbytes: int) -> None:
        """Launch, measured; a launch that is only recorded, to be repeated later, is not."""
        if self._device.is_recording():
            kernel(*operands)
            return
        begin, end = self._device.event(), self._device.event()
        begin.record()
        kernel(*operands)
        end.record()
        self._waiting.append((begin, end))
        self._read(0 if self._device.is_host else _WAITING)
        self.launches += 1
        self.nbytes += nbytes

    def _read(self, left: int) -> None:
        while len(self._waiting) > left:
            begin, end = self._waiting.popleft()
            end.synchronize()
            self._seconds += begin.elapsed_time(end) * 1e-3


def metered(
    name: str, key: str, device: str, uses: Sequence[int], kernel: Callable[..., Any]
) -> Callable[..., Any]:
    """The kernel, measured at every launch.

    Args:
        name, key: of the kernel; equal ones share a meter.
        device: the type of device that it runs on.
        uses: how often each operand's memory is moved: once if it is read or written, twice if both, and not
            at all if it is a number.
        kernel: what is launched.
    """
    _print_at_exit()
    with _LOCK:
        meter = _METERS.setdefault((name, key), Meter(name, device))

    def launch(*operands: Any) -> None:
        nbytes = sum(n * operand.nbytes for n, operand in zip(uses, operands, strict=True) if n)
        meter.run(kernel, operands, nbytes)

    return launch


def report() -> str:
    """A line for each kernel launched so far, the costliest first; empty if none was."""
    with _LOCK:
        meters = [meter for meter in _METERS.values() if meter.launches]
    if not meters:
        return ""
    meters.sort(key=lambda meter: -meter.milliseconds)
    total = sum(meter.milliseconds for meter in meters)
    lines = [f"{'ms':>10} {'share':>6} {'launches':>9} {'us each':>10} {'GB/s':>8}  kernel"]
    for meter in meters:
        ms = meter.milliseconds
        rate = meter.nbytes / ms / 1e6 if ms else 0.0
        share = ms / total if total else 0.0
        lines.append(
            f"{ms:>10.3f} {share:>6.1%} {meter.launches:>9} {ms * 1e3 / meter.launches:>10.2f} {rate:>8.1f}  "
            f"{meter.name}"
        )
    return "\n".join(lines)


def forget() -> None:
    """Start anew; what was launched before goes on unseen."""
    with _LOCK:
        _METERS.clear()


@cache
def _print_at_exit() -> None:
    atexit.register(_print_report)


def _print_report() -> None:
    text = report()
    if text:
        print(f"kernels of Polyfuse\n{text}", file=sys.stderr)
