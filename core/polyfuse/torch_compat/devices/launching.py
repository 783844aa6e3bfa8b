"""What native launchers of a device need of torch: its current stream, and whether its profiler runs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.autograd.profiler as _profiler

__all__ = ["current_stream", "current_stream_address", "profiler_flag"]

# For each device type: the library that has the C function, and its name.
_STREAM_FUNCTIONS: Mapping[str, tuple[str, str]] = {
    "cuda": ("libtorch_cuda.so", "aoti_torch_get_current_cuda_stream"),
    "xpu": ("libtorch_xpu.so", "aoti_torch_get_current_xpu_stream"),
}


def current_stream(device_type: str) -> Callable[[int], int]:
    """A function from a device's index to its current stream, as the address that the driver knows it by."""
    raw = getattr(torch._C, f"_{device_type}_getCurrentRawStream", None)
    if raw is not None:
        return raw
    module = torch.get_device_module(device_type)
    return lambda index: int(getattr(module.current_stream(index), f"{device_type}_stream"))


@cache
def current_stream_address(device_type: str) -> int | None:
    """Address of a C function `int f(int32_t device, void** stream)` of the same meaning, which returns 0 on
    success; None where this torch has none.
    """
    library, name = _STREAM_FUNCTIONS.get(device_type, ("", ""))
    path = Path(torch.__file__).parent / "lib" / library
    try:
        # only as it is loaded already, together with torch
        loaded = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def profiler_flag() -> tuple[dict[str, Any], str] | None:
    """A dictionary and the key in it whose value is True while torch's profiler records; None where this
    torch has no such thing.
    """
    name = "_is_profiler_enabled"
    return (vars(_profiler), name) if isinstance(getattr(_profiler, name, None), bool) else None
