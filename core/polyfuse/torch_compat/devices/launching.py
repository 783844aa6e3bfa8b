"""What native launchers of a device need of torch: its current stream, and whether its profiler runs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as _profiler


def current_stream(device_type: str) -> Callable[[int], int]:
    """A function from a device's index to its current stream, as the address that the driver knows it by."""
    raw = getattr(torch._C, f"_{device_type}_getCurrentRawStream", None)
    if raw is not None:
        return raw
    module, name = torch.get_device_module(device_type), f"{device_type}_stream"

    def address(index: int) -> int:
        stream = module.current_stream(index)
        # torch's own `Stream`, which devices without a class of theirs have, knows a number
        found = getattr(stream, name, None)
        return int(stream.stream_id if found is None else found)

    return address


def c_function(library: str, name: str) -> int:
    """Address of a C function of one of torch's libraries; 0: that is not loaded, or lacks the function."""
    path = Path(torch.__file__).parent / "lib" / library
    try:
        # only as it is loaded already, together with torch
        loaded = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


def profiler_flag() -> tuple[dict[str, Any], str] | None:
    """A dictionary and the key in it whose value is True while torch's profiler records; None where this
    torch has no such thing.
    """
    name = "_is_profiler_enabled"
    return (vars(_profiler), name) if isinstance(getattr(_profiler, name, None), bool) else None
