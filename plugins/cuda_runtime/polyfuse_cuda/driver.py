"""The CUDA driver through ctypes. Each method names the functions that it calls, in their order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from polyfuse.base.errors import KernelLoadError

DRIVER = "libcuda.so.1"
EARLIER_ERROR = "with POLYFUSE_DEBUG_SYNC=1 an error of an earlier kernel shows at its cause"
"""The advice where a launch fails."""

OUT_OF_MEMORY = 2
"""The status where a device has no memory left."""

MAX_DYNAMIC_SHARED, NON_PORTABLE_CLUSTER = 8, 14
"""Of functions: bytes of shared memory that a launch may ask for; clusters of more than 8 blocks."""
USUAL_SHARED = 48 * 1024
"""Bytes of shared memory that a launch may ask for without that attribute."""

_MAJOR, _MINOR, _SHARED_PER_BLOCK = 75, 76, 97
_DEPENDENT_LAUNCH = 12030
"""The version of CUDA since which programmatic dependent launches can be recorded in graphs."""


class Driver:
    """The driver's functions.

    Attributes:
        library: as ctypes opened it.
    """

    def __init__(self, library: Any) -> None:
        self.library = library

    @staticmethod
    def open(name: str = DRIVER, needed: Sequence[str] = ()) -> Driver:
        """The library of a name or path; raises `KernelLoadError` where it cannot be used, or lacks a needed
        function.
        """
        try:
            library = ctypes.CDLL(name)
            for function in needed:
                getattr(library, function)
        except (OSError, AttributeError) as error:
            raise KernelLoadError(
                f"the driver cannot be used ({error})", "install the driver of the GPU"
            ) from error
        return Driver(library)

    def words(self, status: int) -> str:
        """The driver's words for an error: `cuGetErrorName`, `cuGetErrorString`."""
        name, words = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorName(status, ctypes.byref(name))
        self.library.cuGetErrorString(status, ctypes.byref(words))
        return f"{(words.value or b'no reason').decode()} ({(name.value or b'unknown error').decode()})"

    def version(self) -> int:
        """The version of CUDA that the driver supports, 12030 for 12.3; 0 if it does not say:
        `cuDriverGetVersion`, which does not initialise the driver.
        """
        found = ctypes.c_int(0)
        status = self.library.cuDriverGetVersion(ctypes.byref(found))
        return found.value if status == 0 else 0

    def has_dependent_launch(self) -> bool:
        """Whether it takes programmatic dependent launches in streams and in graphs."""
        return self.version() >= _DEPENDENT_LAUNCH

    # --- contexts and devices -------------------------------------------------------------------------------

    def context(self) -> tuple[int, int]:
        """The status, and this thread's context, 0 for none: `cuCtxGetCurrent`."""
        context = ctypes.c_void_p()
        status = self.library.cuCtxGetCurrent(ctypes.byref(context))
        return int(status), context.value or 0

    def has_context(self) -> bool:
        """Whether this thread has a context; without one, launches fail."""
        status, context = self.context()
        return status == 0 and context != 0

    def enter_context(self, index: int) -> int:
        """Make a device's primary context that of this thread: `cuInit`, `cuDeviceGet`,
        `cuDevicePrimaryCtxRetain`, `cuCtxSetCurrent`. Raises `KernelLoadError`, or torch's own error where
        there is no memory for one.
        """
        context, device, library = ctypes.c_void_p(), ctypes.c_int(), self.library
        status = (
            library.cuInit(0)
            or library.cuDeviceGet(ctypes.byref(device), index)
            or library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            or library.cuCtxSetCurrent(context)
        )
        if status:
            words = f"no context of the GPU: {self.words(status)}"
            if status == OUT_OF_MEMORY:
                import torch  # workers that build only ask for the driver's version

                raise torch.OutOfMemoryError(words)
            raise KernelLoadError(words, "check `nvidia-smi`")
        return context.value or 0

    def device(self) -> int:
        """The current context's device: `cuCtxGetDevice`."""
        device = ctypes.c_int()
        self.library.cuCtxGetDevice(ctypes.byref(device))
        return device.value

    def capability(self, device: int) -> tuple[int, int]:
        """Major and minor compute capability of a device: `cuDeviceGetAttribute`, twice."""
        return self._attribute(_MAJOR, device), self._attribute(_MINOR, device)

    def shared_limit(self, device: int) -> int:
        """The most shared memory that a block may ask for, in bytes: `cuDeviceGetAttribute`."""
        return self._attribute(_SHARED_PER_BLOCK, device)

    def _attribute(self, number: int, device: int) -> int:
        value = ctypes.c_int()
        self.library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    # --- code -----------------------------------------------------------------------------------------------

    def load_module(self, code: bytes | ctypes.c_void_p) -> tuple[int, ctypes.c_void_p]:
        """The status, and a module of machine code or PTX: `cuModuleLoadData`."""
        module = ctypes.c_void_p()
        return int(self.library.cuModuleLoadData(ctypes.byref(module), code)), module

    def function(self, module: ctypes.c_void_p, symbol: bytes) -> tuple[int, ctypes.c_void_p]:
        """The status, and a kernel of a module: `cuModuleGetFunction`."""
        function = ctypes.c_void_p()
        status = self.library.cuModuleGetFunction(ctypes.byref(function), module, symbol)
        return int(status), function

    def set_attribute(self, function: ctypes.c_void_p, attribute: int, value: int) -> int:
        """The status of `cuFuncSetAttribute`."""
        return int(self.library.cuFuncSetAttribute(function, attribute, value))

    def load_function(
        self,
        code: bytes,
        symbol: str,
        attributes: Sequence[tuple[int, int]] = (),
        free_memory: Callable[[], None] | None = None,
    ) -> tuple[int, ctypes.c_void_p]:
        """The status, and a kernel of a module with attributes set; where one of these fails, the module is
        unloaded again (`cuModuleUnload`). Without memory for it, it is tried once more after
        `free_memory`, which is `free_cached_memory` unless another is given.
        """
        status, function = self._loaded(code, symbol, attributes)
        if status == OUT_OF_MEMORY:
            (free_memory or free_cached_memory)()
            status, function = self._loaded(code, symbol, attributes)
        return status, function

    def _loaded(
        self, code: bytes, symbol: str, attributes: Sequence[tuple[int, int]]
    ) -> tuple[int, ctypes.c_void_p]:
        status, module = self.load_module(code)
        if status:
            return status, module
        status, function = self.function(module, symbol.encode())
        for attribute, value in attributes:
            status = status or self.set_attribute(function, attribute, value)
        if status:
            self.library.cuModuleUnload(module)
        return status, function


def free_cached_memory() -> None:
    """Give the device the memory that torch's allocator caches, unless what is launched is being recorded."""
    import torch

    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.empty_cache()


def driver_version(library: str = DRIVER) -> int:
    """`Driver.version` of a library by its name or path; 0 without a driver."""
    try:
        return Driver(ctypes.CDLL(library)).version()
    except (OSError, AttributeError):
        return 0


def has_dependent_launch(library: str = DRIVER) -> bool:
    """`Driver.has_dependent_launch` of a library by its name or path."""
    return driver_version(library) >= _DEPENDENT_LAUNCH
