"""The functions of the GPU's driver that launching needs."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from polyfuse.base.errors import KernelLaunchError, KernelLoadError, PolyfuseError

__all__ = ["DRIVER", "check", "driver", "starts_early"]

DRIVER = "libcuda.so.1"
_EARLIER = "with POLYFUSE_DEBUG_SYNC=1 an error of an earlier kernel shows at its cause"
_EARLY_STARTS = 12030
"""The version of CUDA since which drivers record launches in graphs that start while another kernel ends."""
_NEEDED = (
    "cuCtxGetCurrent",
    "cuDriverGetVersion",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuOccupancyMaxActiveClusters",
    "cuTensorMapEncodeTiled",
)


@cache
def driver() -> Any:
    """The driver's library; raises `KernelLoadError` where it cannot be used."""
    try:
        library = ctypes.CDLL(DRIVER)
        for name in _NEEDED:
            getattr(library, name)
    except (OSError, AttributeError) as error:
        raise KernelLoadError(
            f"the driver cannot be used ({error})", "install the driver of the GPU"
        ) from error
    return library


def starts_early() -> bool:
    """Whether the driver starts kernels before the one before them in their stream is done."""
    version = ctypes.c_int(0)
    return driver().cuDriverGetVersion(ctypes.byref(version)) == 0 and version.value >= _EARLY_STARTS


def check(status: int, what: str, loading: bool = False) -> None:
    """Raise an error with the driver's words unless `status` is success."""
    if not status:
        return
    name, words = ctypes.c_char_p(), ctypes.c_char_p()
    driver().cuGetErrorName(status, ctypes.byref(name))
    driver().cuGetErrorString(status, ctypes.byref(words))
    texts = [(found.value or b"unknown").decode() for found in (name, words)]
    kind: type[PolyfuseError] = KernelLoadError if loading else KernelLaunchError
    raise kind(
        f"{what} failed: {texts[1]} ({texts[0]})",
        "delete the cache and compile again"
        if loading
        else "with POLYFUSE_DEBUG_SYNC=1 an error of an earlier kernel shows at its cause",
    )
