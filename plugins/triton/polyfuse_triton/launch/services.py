"""What launchers need of the process: torch's streams and tensors, errors, and the driver's library."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

from polyfuse.base.errors import KernelLaunchError, KernelLoadError
from polyfuse_cuda.cublas import matmul_library
from polyfuse_cuda.driver import DRIVER, free_cached_memory


@dataclass(frozen=True)
class Services:
    """Everything that a launcher calls or raises.

    Attributes:
        driver: name or path of the driver's library.
        tensor_data: address of a C function from a tensor object to the address of its elements, or None.
        stream_function: address of a C function that gives a device's current stream, or None.
        stream: the same as a Python function.
        current_device: the index of the current device, which it initialises.
        allocate: bytes of memory on the current device, as a tensor.
        profiler: a dictionary and the key whose value there says whether a profiler records; or None.
        annotate: makes a context that shows under a name in the profiler.
        free_memory: releases the memory that this process caches; called where the driver has none,
            which is then asked once more.
        matmuls: name or path of cuBLASLt; empty: there is none.
        load_error, launch_error: classes of errors, called with a cause and a fix.
        memory_error: the class of errors of a device without memory, called with a text.
        memory: addresses of C functions that take memory and give it back, or None
            (`Device.memory_functions`).
    """

    driver: str
    tensor_data: int | None
    stream_function: int | None
    stream: Callable[[int], int]
    current_device: Callable[[], int]
    allocate: Callable[[int], Any]
    profiler: tuple[dict[str, Any], str] | None
    annotate: Callable[[str], AbstractContextManager[Any]]
    free_memory: Callable[[], None]
    memory_error: type[Exception]
    memory: tuple[int | None, int | None] = (None, None)
    matmuls: str = ""
    load_error: type[Exception] = KernelLoadError
    launch_error: type[Exception] = KernelLaunchError


@cache
def torch_services() -> Services:
    """Those of the torch of this process."""
    import torch

    from polyfuse.runtime import record_function, tensor_data_ptr_address
    from polyfuse.runtime.launching import (
        current_stream,
        current_stream_address,
        memory_functions,
        profiler_flag,
    )

    take, give = memory_functions("cuda")

    def allocate(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    return Services(
        driver=DRIVER,
        tensor_data=tensor_data_ptr_address(),
        stream_function=current_stream_address("cuda"),
        stream=current_stream("cuda"),
        current_device=torch.cuda.current_device,
        allocate=allocate,
        profiler=profiler_flag(),
        annotate=record_function,
        free_memory=free_cached_memory,
        memory_error=torch.OutOfMemoryError,
        memory=(take or None, give or None),
        matmuls=matmul_library(),
    )
