"""The host itself as a device: its work is done when a call returns."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

from polyfuse.runtime.devices.device import Allocate, Device, DeviceProperties, MemoryStatistics
from polyfuse.runtime.devices.switches import read_switches, write_switches
from polyfuse.torch_compat import bindings
from polyfuse.torch_compat.devices.host_switches import HOST_SWITCHES, multiplies_bf16


class HostDevice(Device):
    """The CPU, with one stream: the calling thread."""

    is_host = True
    bernoulli_dropout = True
    spelled_attention: ClassVar[Mapping[torch.dtype, int]] = {
        torch.float32: 48,
        **({torch.bfloat16: 32} if multiplies_bf16() else {}),
    }

    def count(self) -> int:
        """One."""
        return 1

    def current(self) -> Callable[[], int]:
        """A function that says 0."""
        return lambda: 0

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """Nothing to do."""
        return nullcontext()

    def event(self) -> _Event:
        """The host's clock."""
        return _Event()

    def synchronize(self, index: int | None = None) -> None:
        """Nothing to wait for."""

    def allocator(self, index: int | None = None) -> Allocate:
        """Torch's own."""
        return bindings.empty_strided_cpu

    def memory(self, index: int | None = None) -> MemoryStatistics | None:
        """Torch does not count."""
        return None

    def properties(self, index: int | None = None) -> DeviceProperties:
        """The model of the CPU."""
        return DeviceProperties(_cpu())

    def switches(self) -> Mapping[str, object]:
        """The precision of matmuls and determinism on every device, and oneDNN's switches."""
        return read_switches(HOST_SWITCHES)

    def set_switches(self, switches: Mapping[str, object]) -> None:
        """Set them."""
        write_switches(HOST_SWITCHES, switches)

    def is_recording(self) -> bool:
        """Never."""
        return False


class _Event:
    def __init__(self) -> None:
        self.seconds = 0.0

    def record(self) -> None:
        """Now."""
        self.seconds = time.perf_counter()

    def synchronize(self) -> None:
        """It was reached."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds between two events."""
        return float(end.seconds - self.seconds) * 1e3


@cache
def _cpu(path: Path = Path("/proc/cpuinfo")) -> str:
    """What the CPU is called, where the system says: libraries are chosen by that, too."""
    try:
        words = [line.partition(":") for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    named = {key.strip(): value.strip() for key, _, value in words}
    # in virtual machines, names of models may say as little as the vendor does
    numbers = "-".join(named[name] for name in ("cpu family", "model", "stepping") if name in named)
    return (
        f"{platform.machine()} {named.get('vendor_id', '')} {named.get('model name', '')} {numbers}".strip()
    )
