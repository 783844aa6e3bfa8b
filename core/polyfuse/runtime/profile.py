"""What each kernel and library call takes and how fast it moves memory, printed when the process ends (option
`profile`). The first launch of each is listed apart: it loads code, fills caches and touches memory first.
"""

from __future__ import annotations

import atexit
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.runtime.devices.registry import device_of

if TYPE_CHECKING:
    from polyfuse.runtime.module import CompiledModule

_OPERATOR = re.compile(r"^(\w+) = operator\('([^']+)'(?:, out=True)?\)$", re.MULTILINE)
"""How a host program names an operator that it calls."""

# Pairs of events that wait to be read; a device keeps what they need until then.
_WAITING = 512

_LOCK = threading.Lock()
_METERS: dict[tuple[str, str], Meter] = {}


class Meter:
    """Counts, times and bytes of one kernel or call; its first launch counts by itself.

    Attributes:
        name: of the kernel, or of the operator.
        launches: how often it ran after the first time.
        milliseconds: of these together, by the device's own clock.
        nbytes: that the arguments of these hold; what is read and written counts twice.
        first: milliseconds of the first launch; None where there was none.
    """

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self.launches = 0
        self.nbytes = 0
        self._times: list[float] = [0.0, 0.0]  # of the first launch, and of the others
        self._seen = False
        self._device = device_of(device)
        self._waiting: deque[tuple[int, Any, Any]] = deque()

    @property
    def milliseconds(self) -> float:
        """Waits for launches that still run."""
        self._read(0)
        return self._times[1] * 1e3

    @property
    def first(self) -> float | None:
        """Waits for launches that still run."""
        self._read(0)
        return self._times[0] * 1e3 if self._seen else None

    def run(
        self,
        kernel: Callable[..., Any],
        operands: Sequence[Any],
        nbytes: int,
        named: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """Launch, measured; a launch that is only recorded, to be repeated later, is not."""
        if self._device.is_recording():
            return kernel(*operands, **named)
        slot = int(self._seen)
        begin, end = self._device.event(), self._device.event()
        begin.record()
        out = kernel(*operands, **named)
        end.record()
        self._waiting.append((slot, begin, end))
        self._read(0 if self._device.is_host else _WAITING)
        self._seen = True
        self.launches += slot
        self.nbytes += slot * nbytes
        return out

    def _read(self, left: int) -> None:
        while len(self._waiting) > left:
            slot, begin, end = self._waiting.popleft()
            end.synchronize()
            self._times[slot] += begin.elapsed_time(end) * 1e-3


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


def meter_calls(module: CompiledModule, device: str) -> None:
    """Measure the operators that a loaded program calls, and kernels of plugins that are objects of it.

    Args:
        device: of the program, as its type; empty: the CPU.
    """
    _print_at_exit()
    for variable, op in _OPERATOR.findall(module.text):
        function = module.namespace.get(variable)
        if callable(function):
            with _LOCK:
                meter = _METERS.setdefault((op, "operator"), Meter(op, device or "cpu"))
            module.namespace[variable] = _called(meter, function)
    for variable in module.namespace["OBJECTS"]:
        function = module.namespace[variable]
        if callable(function) and getattr(function, "storable", False):
            name = str(getattr(function, "__name__", variable))
            with _LOCK:
                meter = _METERS.setdefault((name, "object"), Meter(name, device or "cpu"))
            module.namespace[variable] = _called(meter, function)


def _called(meter: Meter, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
        return meter.run(function, args, sum(x.nbytes for x in tensors), kwargs)

    return call


def report() -> str:
    """A line for each kernel and operator that ran, the costliest first; empty if none did."""
    with _LOCK:
        meters = [meter for meter in _METERS.values() if meter.first is not None]
    if not meters:
        return ""
    meters.sort(key=lambda meter: (-meter.milliseconds, -(meter.first or 0.0)))
    total = sum(meter.milliseconds for meter in meters)
    head = f"{'ms':>10} {'share':>6} {'launches':>9} {'us each':>10} {'GB/s':>8} {'first ms':>9}"
    lines = [f"{head}  kernel or operator"]
    for meter in meters:
        ms, first = meter.milliseconds, meter.first or 0.0
        rate = meter.nbytes / ms / 1e6 if ms else 0.0
        share = ms / total if total else 0.0
        each = ms * 1e3 / meter.launches if meter.launches else 0.0
        row = f"{ms:>10.3f} {share:>6.1%} {meter.launches:>9} {each:>10.2f} {rate:>8.1f} {first:>9.3f}"
        lines.append(f"{row}  {meter.name}")
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
        about = "kernels of Polyfuse and operators that they leave to libraries; first launches count apart"
        print(f"{about}\n{text}", file=sys.stderr)
