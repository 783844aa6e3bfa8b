"""For launchers and devices of plugins: the current stream, torch's profiler, ends of failed recordings."""

from __future__ import annotations

from collections.abc import Callable

from polyfuse.runtime.devices.registry import device_of
from polyfuse.torch_compat.devices.launching import c_function, profiler_flag
from polyfuse.torch_compat.devices.pools import clear_workspaces, end_allocation_to_pool, release_pool

__all__ = [
    "c_function",
    "clear_workspaces",
    "current_stream",
    "current_stream_address",
    "end_allocation_to_pool",
    "profiler_flag",
    "release_pool",
]


def current_stream(device_type: str) -> Callable[[int], int]:
    """A function from a device's number to its current stream, as a number by which launchers know it."""
    return device_of(device_type).stream_address()


def current_stream_address(device_type: str) -> int:
    """Address of a C function ``int f(int32_t device, void** stream)`` of the same meaning, which returns 0
    on success; 0: there is none.
    """
    return device_of(device_type).stream_function()
