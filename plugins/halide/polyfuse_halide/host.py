"""The CPU that kernels are compiled for, found without importing Halide."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from polyfuse.base.digest import digest


@dataclass(frozen=True)
class Host:
    """This machine's CPU: a name that tells its abilities from another's, numbers of 32 bits that one
    vector holds, and how many CPUs the system has.
    """

    name: str
    lanes: int
    count: int = 1


@lru_cache(maxsize=1)
def host() -> Host:
    """The CPU of this machine."""
    flags: list[str] = []
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "flags":
                flags = value.split()
                break
            if key.strip() in ("cpu family", "model", "vendor_id"):
                model += f" {value.strip()}"
    except OSError:
        pass
    lanes = 16 if "avx512f" in flags else 8
    return Host(f"{platform.machine()}{model} {digest(*sorted(flags))[:12]}", lanes, os.cpu_count() or 1)


@lru_cache(maxsize=1)
def library_digest() -> str:
    """A digest of the library that generated programs call."""
    folder = Path(__file__).parent / "library"
    return digest(*(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))))[:16]
