"""What of this machine and this process timings depend on, besides what a backend says of its device."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

__all__ = ["cache_bytes", "threads"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_GUESS = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def cache_bytes(folder: Path = _CACHES) -> int:
    """Bytes of the processor's last cache; a guess where the system does not say."""
    largest = 0
    for path in folder.glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            largest = max(largest, int(text.rstrip("KMG")) * _UNITS.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return largest or _GUESS


def threads() -> int:
    """How many threads compute."""
    return torch.get_num_threads()
