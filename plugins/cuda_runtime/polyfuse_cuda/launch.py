"""Launches: the driver's structures, and the call for a function with packed parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from polyfuse_cuda.driver import Driver

COOPERATIVE, CLUSTER_DIMENSION, CLUSTER_SCHEDULING, DEPENDENT_LAUNCH = 2, 4, 5, 6
"""Attributes of launches, as `CUlaunchAttributeID` numbers them: all blocks at once; blocks of a cluster, and
how clusters are spread; a start before the kernel before it in the stream has ended.
"""

Attributes = Sequence[tuple[int, tuple[int, ...]]]
"""Attributes of a launch with their values."""


class _Attribute(ctypes.Structure):
    """`CUlaunchAttribute`; of values, the longest is as long as this one."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


def launch_config(
    grid: tuple[int, int, int], threads: int, shared: int, stream: Any, attributes: Attributes = ()
) -> LaunchConfig:
    """A grid of blocks of so many threads and bytes of shared memory, in a stream (None: the default one)."""
    count = len(attributes)
    packed = (_Attribute * count)(*(_Attribute(number, 0, values) for number, values in attributes))
    return LaunchConfig(grid, (threads, 1, 1), shared, stream, packed, count)


def parameters(addresses: Iterable[int]) -> Any:
    """The driver's `kernelParams`: the address of each parameter's value, which must live as long."""
    found = list(addresses)
    return (ctypes.c_void_p * len(found))(*found)


def launch(
    driver: Driver,
    function: ctypes.c_void_p,
    grid: tuple[int, int, int],
    threads: int,
    shared: int,
    stream: ctypes.c_void_p,
    packed: Any,
    attributes: Attributes = (),
) -> int:
    """The status of `cuLaunchKernel`, or with attributes of `cuLaunchKernelEx`."""
    if attributes:
        config = launch_config(grid, threads, shared, stream, attributes)
        return int(driver.library.cuLaunchKernelEx(ctypes.byref(config), function, packed, None))
    shape = (ctypes.c_uint(n) for n in (*grid, threads, 1, 1, shared))
    return int(driver.library.cuLaunchKernel(function, *shape, stream, packed, None))
