"""The machine that measures, and whether it is quiet."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import torch

from polyfuse.base.code import version

_BUSY = 0.3
"""Load per CPU above which times mean little."""


@dataclass(frozen=True)
class Machine:
    """Facts that times depend on.

    Attributes:
        load: processes that wanted a CPU, averaged over the last minute, before anything was measured.
        governor: how the clock of the CPU is set; empty where that is not known.
    """

    polyfuse: str
    torch: str
    python: str
    system: str
    cpu: str
    cpus: int
    threads: int
    devices: tuple[str, ...]
    load: float
    governor: str

    def warnings(self) -> list[str]:
        """What makes times on this machine doubtful."""
        found = []
        if self.load > _BUSY * self.cpus:
            found.append(
                f"the machine is busy (load {self.load:.1f} on {self.cpus} CPUs): times are long and vary; "
                "end what else runs"
            )
        if self.governor and self.governor != "performance" and not self.devices:
            found.append(
                f"the CPU's clock varies (governor {self.governor}): short runs may be slower than long ones"
            )
        return found

    def summary(self) -> str:
        """One line."""
        where = "; ".join((f"{self.cpu}, {self.threads} threads", *self.devices))
        return f"{where}; torch {self.torch}, Polyfuse {self.polyfuse}, Python {self.python}, {self.system}"


def this_machine() -> Machine:
    """The facts, now."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    module = None if accelerator is None else torch.get_device_module(accelerator)
    devices: tuple[str, ...] = ()
    if accelerator is not None and module is not None:
        # torch asks for no such function of the module of a device that it does not know
        name = getattr(module, "get_device_name", f"{accelerator.type}:{{}}".format)
        devices = tuple(map(name, range(module.device_count())))
    governor = _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return Machine(
        version(),
        str(torch.__version__),
        platform.python_version(),
        f"{platform.system()} {platform.machine()}",
        _cpu(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        torch.get_num_threads(),
        devices,
        os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        governor.strip(),
    )


def _cpu() -> str:
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""
