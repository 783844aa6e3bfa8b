"""The launcher in plain Python, for machines without a C++ compiler: the same behaviour, ten times slower."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfuse.plugin import Launchable
from polyfuse_cuda.driver import (
    EARLIER_ERROR,
    MAX_DYNAMIC_SHARED,
    NON_PORTABLE_CLUSTER,
    OUT_OF_MEMORY,
    USUAL_SHARED,
    Driver,
)
from polyfuse_cuda.launch import (
    CLUSTER_DIMENSION,
    CLUSTER_SCHEDULING,
    COOPERATIVE,
    DEPENDENT_LAUNCH,
    launch,
    parameters,
)
from polyfuse_triton.build.artifact import Artifact, Variant
from polyfuse_triton.launch.expressions import evaluate, postfix
from polyfuse_triton.launch.native import letters
from polyfuse_triton.launch.services import Services

_NEEDED = ("cuGetErrorName", "cuGetErrorString", "cuLaunchKernel", "cuModuleLoadData")
_WORDS_ALIGN = 16
_LARGEST = (2**31 - 1, 65535, 65535)


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
        self.driver = Driver.open(services.driver, _NEEDED)
        self.has_dependent_launch = self.driver.has_dependent_launch()

    def kernel(self, artifact: Artifact, folder: Path) -> Launchable:
        """A callable that launches the kernel on the current device and stream."""
        return _Kernel(self, artifact, folder)

    def prepare(self, kernel: Launchable) -> None:
        """Load the kernel's code into the current device, so that a damaged file shows now."""
        assert isinstance(kernel, _Kernel)
        kernel.loaded()

    def enter_context(self) -> int:
        """The current context, or the current device's own one, made current."""
        status, context = self.driver.context()
        if status == 0 and context:
            return context
        return self.driver.enter_context(self.services.current_device())


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
            if context not in self._contexts:
                self._contexts[context] = self._load()
            return self._contexts[context]

    def _load(self) -> _Loaded:
        driver, error, artifact = self._launcher.driver, self._launcher.services.load_error, self._artifact
        device = driver.device()
        major, minor = driver.capability(device)
        variant = artifact.variant_for(major * 10 + minor)
        if variant is None:
            raise error(
                f"kernel {artifact.name} has no code for device {device}, of compute capability "
                f"{major}.{minor}",
                "name its architecture in the option `triton.target`, or leave it empty",
            )
        attributes = []
        if variant.shared_bytes > USUAL_SHARED:
            attributes.append((MAX_DYNAMIC_SHARED, variant.shared_bytes))
        if artifact.meta.blocks > 8:
            attributes.append((NON_PORTABLE_CLUSTER, 1))
        free_memory = self._launcher.services.free_memory
        code = self._code[variant.file]
        status, function = driver.load_function(code, artifact.symbol, attributes, free_memory)
        if status:
            raise self._failure(error, "loaded", status, "delete it from the cache and compile again")
        return _Loaded(function, device, variant)

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
                self._launcher.driver.library.cuMemsetD8Async(
                    ctypes.c_uint64(address.value or 0), 0, ctypes.c_size_t(words * 8), stream
                )
            )
            values = [*values, address]
        if variant.scratch_bytes:
            programs = grid[0] * grid[1] * grid[2] * self._artifact.meta.blocks
            memory, scratch = self._memory(programs * variant.scratch_bytes, variant.scratch_align)
            held.append(memory)
        values = [*values, scratch, ctypes.c_void_p(0)]
        packed = parameters(ctypes.addressof(value) for value in values)
        if not status:
            status = self._launch(loaded, grid, stream, packed)
            if status == OUT_OF_MEMORY:
                services.free_memory()
                status = self._launch(loaded, grid, stream, packed)
        if status:
            raise self._failure(services.launch_error, "launched", status, EARLIER_ERROR)

    def _failure(self, kind: type[Exception], what: str, status: int, fix: str) -> Exception:
        """The error for a status of the driver's."""
        words = self._launcher.driver.words(status)
        text = f"kernel {self._artifact.name} could not be {what}: {words}"
        return self._launcher.services.memory_error(text) if status == OUT_OF_MEMORY else kind(text, fix)

    def _memory(self, size: int, align: int) -> tuple[Any, ctypes.c_void_p]:
        """Memory for one launch, and where it begins."""
        memory = self._launcher.services.allocate(size + align)
        return memory, ctypes.c_void_p(-(-memory.data_ptr() // align) * align)

    def _launch(self, loaded: _Loaded, grid: Sequence[int], stream: ctypes.c_void_p, packed: Any) -> int:
        meta, variant = self._artifact.meta, loaded.variant
        attributes: list[tuple[int, tuple[int, ...]]] = []
        if meta.cooperative:
            attributes.append((COOPERATIVE, (1,)))
        if meta.blocks > 1:
            attributes += [(CLUSTER_DIMENSION, (meta.blocks, 1, 1)), (CLUSTER_SCHEDULING, (1,))]
        if variant.starts_early and self._launcher.has_dependent_launch:
            attributes.append((DEPENDENT_LAUNCH, (1,)))
        return launch(
            self._launcher.driver,
            loaded.function,
            (grid[0] * meta.blocks, grid[1], grid[2]),
            variant.num_warps * 32,
            variant.shared_bytes,
            stream,
            packed,
            attributes,
        )

    def _convert(self, position: int, given: Any) -> Any:
        letter = self._letters[position]
        if letter in "fd":
            return ctypes.c_float(given) if letter == "f" else ctypes.c_double(given)
        error = self._launcher.services.launch_error
        what = f"argument {self._artifact.meta.args[position].name} of kernel {self._artifact.name}"
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
