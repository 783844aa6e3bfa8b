"""The driver, with the functions that launches of GEMM kernels need."""

from __future__ import annotations

from functools import cache

import torch

from polyfuse.base.errors import KernelLaunchError, KernelLoadError, PolyfuseError
from polyfuse_cuda.driver import EARLIER_ERROR, OUT_OF_MEMORY, Driver

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
def driver() -> Driver:
    """The driver's library; raises `KernelLoadError` where it cannot be used."""
    return Driver.open(needed=_NEEDED)


def check(status: int, what: str, loading: bool = False) -> None:
    """Raise an error with the driver's words unless `status` is success; torch's own without memory."""
    if not status:
        return
    text = f"{what} failed: {driver().words(status)}"
    if status == OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(text)
    kind: type[PolyfuseError] = KernelLoadError if loading else KernelLaunchError
    advice = "delete the cache and compile again" if loading else EARLIER_ERROR
    raise kind(text, advice)
