"""Facts about the machine and the software that a measurement depends on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

# The instruction sets that change what a code generator can emit.
NOTABLE_FLAGS = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_bf16",
    "avx512_vnni",
    "amx_tile",
    "asimd",
    "sve",
    "bf16",
)


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int
    threads: int
    isa: tuple[str, ...]
    caches: tuple[str, ...]
    memory_gib: float
    system: str
    python: str
    torch: str
    transformers: str
    polyfuse: str
    compiler: str
    loads: tuple[float, ...]

    def summary(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores ({self.threads} threads used), {' '.join(self.isa)}, "
            f"torch {self.torch}, {self.compiler}, Python {self.python}"
        )


def machine() -> Machine:
    """The facts, read now (`loads` are the system's load averages: a busy machine measures badly)."""
    info = _cpu_info()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return Machine(
        cpu=info.get("model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        isa=tuple(flag for flag in NOTABLE_FLAGS if flag in flags),
        caches=_caches(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=platform.platform(),
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=_version("transformers"),
        polyfuse=_version("polyfuse"),
        compiler=_compiler(),
        loads=tuple(round(load, 2) for load in os.getloadavg()),
    )


def _cpu_info() -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    block = path.read_text().split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _caches() -> tuple[str, ...]:
    found = []
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        found.append(f"L{level} {kind.lower()} {size}")
    return tuple(found)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed as a distribution"


def _compiler() -> str:
    program = next((path for name in ("g++", "clang++") if (path := shutil.which(name))), None)
    if program is None:
        return "no C++ compiler"
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    return answer.stdout.splitlines()[0] if answer.stdout else program
