"""For launchers and devices of plugins: the current stream, memory, torch's profiler, series of launches,
ends of failed recordings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyfuse.runtime.devices.addresses import offer_alignment_check
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.devices.series import SeriesPlan, offer_series
from polyfuse.torch_compat.devices.launching import c_function, profiler_flag
from polyfuse.torch_compat.devices.pools import (
    allocation_history,
    clear_workspaces,
    end_allocation_to_pool,
    growing_segments,
    grows_in_ranges,
    pool_blocks,
    release_pool,
)

__all__ = [
    "SeriesPlan",
    "allocation_history",
    "alone",
    "c_function",
    "clear_workspaces",
    "current_stream",
    "current_stream_address",
    "end_allocation_to_pool",
    "growing_segments",
    "grows_in_ranges",
    "memory_functions",
    "offer_alignment_check",
    "offer_series",
    "pool_blocks",
    "profiler_flag",
    "release_pool",
]


def alone(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The form of a kernel for programs in which nothing but kernels computes, so that it need not share
    threads with torch's operators: what the method `alone` of its `__self__` returns for it. The kernel
    itself, where that has none.
    """
    form = getattr(getattr(kernel, "__self__", None), "alone", None)
    return kernel if form is None else form(kernel)


def current_stream(device_type: str) -> Callable[[int], int]:
    """A function from a device's number to its current stream, as a number by which launchers know it."""
    return device_of(device_type).stream_address()


def current_stream_address(device_type: str) -> int:
    """Address of a C function ``int f(int32_t device, void** stream)`` of the same meaning, which returns 0
    on success; 0: there is none.
    """
    return device_of(device_type).stream_function()


def memory_functions(device_type: str) -> tuple[int, int]:
    """Addresses of C functions that take memory of the current device from torch's allocator and give it back
    (`Device.memory_functions`); 0 and 0: there are none.
    """
    library, *names = device_of(device_type).memory_functions
    take, give = (c_function(library, name) if name else 0 for name in names)
    return (take, give) if take and give else (0, 0)
