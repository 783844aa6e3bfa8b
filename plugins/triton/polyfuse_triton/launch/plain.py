"""The launcher in plain Python, for machines without a C++ compiler: the same behaviour, ten times slower."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelLoadError
from polyfuse.plugin import Launchable
from polyfuse_triton.build.artifact import Artifact, Variant
from polyfuse_triton.launch.dependent_launch import driver_starts_early
from polyfuse_triton.launch.expressions import evaluate, postfix
from polyfuse_triton.launch.native import letters
from polyfuse_triton.launch.services import Services

__all__ = ["PlainLauncher"]

_MAJOR, _MINOR = 75, 76
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14
_COOPERATIVE, _CLUSTER_DIMENSION, _CLUSTER_SCHEDULING = 2, 4, 5
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_USUAL_SHARED = 48 * 1024
_WORDS_ALIGN = 16
_LARGEST = (2**31 - 1, 65535, 65535)


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class _Loaded:
    """A kernel in one context."""

    function: ctypes.c_void_p
    device: int
    variant: Variant


class PlainLauncher:
    """Makes callables of built kernels, through the driver's functions."""

    def __init__(self, services: Services) -> None:
        self.services = services
        try:
            self.driver = ctypes.CDLL(services.driver)
            for name in ("cuGetErrorName", "cuGetErrorString", "cuLaunchKernel", "cuModuleLoadData"):
                getattr(self.driver, name)
        except (OSError, AttributeError) as error:
            raise KernelLoadError(
                f"the driver cannot be used ({error})", "install the driver of the GPU"
            ) from error
        self.starts_early = driver_starts_early(services.driver)

    def kernel(self, artifact: Artifact, folder: Path) -> Launchable:
        """A callable that launches the kernel on the current device and stream."""
        return _Kernel(self, artifact, folder)

    def prepare(self, kernel: Launchable) -> None:
        """Load the kernel's code into the current device, so that a damaged file shows now."""
        assert isinstance(kernel, _Kernel)
        kernel.loaded()

    def why(self, status: int) -> str:
        """The driver's words for an error."""
        name, words = ctypes.c_char_p(), ctypes.c_char_p()
        self.driver.cuGetErrorName(status, ctypes.byref(name))
        self.driver.cuGetErrorString(status, ctypes.byref(words))
        return f"{(words.value or b'no reason').decode()} ({(name.value or b'unknown error').decode()})"

    def enter_context(self) -> ctypes.c_void_p:
        """The current context, or the current device's own one, made current."""
        context = ctypes.c_void_p()
        if self.driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and context.value:
            return context
        index, device = self.services.current_device(), ctypes.c_int()
        status = (
            self.driver.cuInit(0)
            or self.driver.cuDeviceGet(ctypes.byref(device), index)
            or self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
            or self.driver.cuCtxSetCurrent(context)
        )
        if status:
            raise self.services.load_error(self.why(status), "check `nvidia-smi`")
        return context


class _Kernel:
    """One kernel; called like the native launcher's."""

    def __init__(self, launcher: PlainLauncher, artifact: Artifact, folder: Path) -> None:
        self._launcher, self._artifact = launcher, artifact
        self._code = {v.file: (folder / v.file).read_bytes() for v in artifact.variants}
        self._letters = letters(artifact.meta)
        names = [arg.name for arg in artifact.meta.args]
        self._grid = [postfix(extent, names) for extent in artifact.meta.grid]
        self._guard = postfix(artifact.meta.guard, names) if artifact.meta.guard else None
        self._zeroed = postfix(artifact.meta.zeroed, names) if artifact.meta.zeroed else None
        self._contexts: dict[int, _Loaded] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: Any) -> None:
        name, services = self._artifact.name, self._launcher.services
        if len(args) != len(self._letters):
            raise TypeError(f"kernel {name} takes {len(self._letters)} arguments, got {len(args)}")
        values = [self._convert(i, value) for i, value in enumerate(args)]
        numbers = [0 if letter in "fd" else int(v.value or 0) for letter, v in zip(self._letters, values)]
        if self._guard is not None and not evaluate(self._guard, numbers):
            raise services.launch_error(
                f"kernel {name} was compiled for sizes of which {self._artifact.meta.guard}",
                "use smaller sizes, or compile with dynamic=False",
            )
        grid = [evaluate(program, numbers) for program in self._grid]
        if min(grid) <= 0:
            return
        limits = (_LARGEST[0] // self._artifact.meta.blocks, *_LARGEST[1:])
        if any(n > most for n, most in zip(grid, limits)):
            raise services.launch_error(
                f"kernel {name} would need a grid of {grid[0]} by {grid[1]} by {grid[2]} programs",
                "a device takes 2147483647 by 65535 by 65535; use smaller sizes",
            )
        flag = services.profiler
        recorded = flag is not None and flag[0].get(flag[1]) is True
        with services.annotate(name) if recorded else nullcontext():
            words = evaluate(self._zeroed, numbers) if self._zeroed is not None else 0
            self._start(self.loaded(), grid, values, words)

    def loaded(self) -> _Loaded:
        """The kernel in the current context."""
        context = self._launcher.enter_context()
        with self._lock:
            key = context.value or 0
            if key not in self._contexts:
                self._contexts[key] = self._load()
            return self._contexts[key]

    def _load(self) -> _Loaded:
        driver, error = self._launcher.driver, self._launcher.services.load_error
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        driver.cuCtxGetDevice(ctypes.byref(device))
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
        variant = self._artifact.variant_for(major.value * 10 + minor.value)
        if variant is None:
            raise error(
                f"kernel {self._artifact.name} has no code for device {device.value}, of compute capability "
                f"{major.value}.{minor.value}",
                "name its architecture in the option `triton.target`, or leave it empty",
            )
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        status = driver.cuModuleLoadData(ctypes.byref(module), self._code[variant.file])
        if not status:
            symbol = self._artifact.symbol.encode()
            status = driver.cuModuleGetFunction(ctypes.byref(function), module, symbol)
            if not status and variant.shared_bytes > _USUAL_SHARED:
                status = driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, variant.shared_bytes)
            if not status and self._artifact.meta.blocks > 8:
                status = driver.cuFuncSetAttribute(function, _NON_PORTABLE_CLUSTER, 1)
            if status:
                driver.cuModuleUnload(module)
        if status:
            raise error(
                f"kernel {self._artifact.name} could not be loaded: {self._launcher.why(status)}",
                "delete it from the cache and compile again",
            )
        return _Loaded(function, device.value, variant)

    def _start(self, loaded: _Loaded, grid: Sequence[int], values: list[Any], words: int) -> None:
        services, variant = self._launcher.services, loaded.variant
        scratch = ctypes.c_void_p(0)
        stream, status = ctypes.c_void_p(services.stream(loaded.device)), 0
        # freed when the launch is in the stream
        held = []
        if self._zeroed is not None:
            memory, address = self._memory(words * 8, _WORDS_ALIGN)
            held.append(memory)
            status = int(
                self._launcher.driver.cuMemsetD8Async(
                    ctypes.c_uint64(address.value or 0), 0, ctypes.c_size_t(words * 8), stream
                )
            )
            values = [*values, address]
        if variant.scratch_bytes:
            programs = grid[0] * grid[1] * grid[2] * self._artifact.meta.blocks
            memory, scratch = self._memory(programs * variant.scratch_bytes, variant.scratch_align)
            held.append(memory)
        values = [*values, scratch, ctypes.c_void_p(0)]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values)
        )
        status = status or self._launch(loaded, grid, stream, pointers)
        if status:
            raise services.launch_error(
                f"kernel {self._artifact.name} could not be launched: {self._launcher.why(status)}",
                "with POLYFUSE_DEBUG_SYNC=1 an error of an earlier kernel shows at its cause",
            )

    def _memory(self, size: int, align: int) -> tuple[Any, ctypes.c_void_p]:
        """Memory for one launch, and where it begins."""
        memory = self._launcher.services.allocate(size + align)
        return memory, ctypes.c_void_p(-(-memory.data_ptr() // align) * align)

    def _launch(self, loaded: _Loaded, grid: Sequence[int], stream: Any, pointers: Any) -> int:
        driver, meta, variant = self._launcher.driver, self._artifact.meta, loaded.variant
        shape = (grid[0] * meta.blocks, *grid[1:])
        threads, shared = variant.num_warps * 32, variant.shared_bytes
        early = variant.starts_early and self._launcher.starts_early
        if meta.blocks == 1 and not meta.cooperative and not early:
            return int(
                driver.cuLaunchKernel(
                    loaded.function,
                    *(ctypes.c_uint(n) for n in (*shape, threads, 1, 1, shared)),
                    stream,
                    pointers,
                    None,
                )
            )
        wanted: list[tuple[int, tuple[int, ...]]] = []
        if meta.cooperative:
            wanted.append((_COOPERATIVE, (1,)))
        if meta.blocks > 1:
            wanted += [(_CLUSTER_DIMENSION, (meta.blocks, 1, 1)), (_CLUSTER_SCHEDULING, (1,))]
        if early:
            wanted.append((_PROGRAMMATIC_STREAM_SERIALIZATION, (1,)))
        count = len(wanted)
        attributes = (_Attribute * count)(*(_Attribute(number, 0, values) for number, values in wanted))
        config = _Config(
            (ctypes.c_uint * 3)(*shape), (ctypes.c_uint * 3)(threads, 1, 1), shared, stream, attributes, count
        )
        return int(driver.cuLaunchKernelEx(ctypes.byref(config), loaded.function, pointers, None))

    def _convert(self, place: int, given: Any) -> Any:
        letter = self._letters[place]
        if letter in "fd":
            return ctypes.c_float(given) if letter == "f" else ctypes.c_double(given)
        error = self._launcher.services.launch_error
        what = f"argument {self._artifact.meta.args[place].name} of kernel {self._artifact.name}"
        fix = "call it with arguments like those it was compiled for"
        if letter in "pP":
            try:
                number = given if isinstance(given, int) else given.data_ptr()
            except Exception:
                raise error(f"{what} is no tensor with memory", fix) from None
        else:
            number = given.__index__()
            if letter in "iI" and not -(2**31) <= number < 2**31:
                raise error(f"{what} does not fit in 32 bits", fix)
        if letter.isupper() and number % 16:
            raise error(f"{what} is no multiple of 16, for which it was compiled", fix)
        return ctypes.c_void_p(number) if letter in "pP" else ctypes.c_int64(number)
