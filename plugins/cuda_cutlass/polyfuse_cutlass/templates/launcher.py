"""Launching kernels that are shared objects."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelLaunchError, KernelLoadError
from polyfuse.runtime import record_function
from polyfuse.runtime.launching import current_stream, profiler_flag
from polyfuse_cuda.driver import EARLIER_ERROR, OUT_OF_MEMORY
from polyfuse_cutlass.build.artifact import Artifact
from polyfuse_cutlass.templates.meta import LinkedMeta

_CACHED = 1024
"""Launches that a kernel keeps for arguments that come again."""
_WORD = (1 << 64) - 1
_CUDA_ERRORS = 1000


@cache
def _library(path: str) -> ctypes.CDLL:
    """A shared object, opened once. It stays open as long as the process lives: a recorded graph may hold its
    kernel when nothing else does.
    """
    return ctypes.CDLL(path)


class _Ready:
    """A launch with certain arguments.

    Attributes:
        address: of the entry point's own record, which lives as long as this.
        scratch: bytes of memory that each launch needs.
    """

    __slots__ = ("_forget", "address", "scratch")

    def __init__(self, address: int, scratch: int, forget: Callable[[int], None]) -> None:
        self.address, self.scratch, self._forget = address, scratch, forget

    def __del__(self) -> None:
        self._forget(self.address)


class Linked:
    """A shared object's kernel: called with its arguments, it launches on the current device and stream.

    Behind them may stand memory to use meanwhile. Where that is missing, or too little, torch lends it.
    """

    def __init__(self, artifact: Artifact, path: Path) -> None:
        self.artifact = artifact
        self.meta = LinkedMeta.parse(artifact.meta)
        try:
            library = _library(str(path))
            self._prepare = getattr(library, f"{artifact.symbol}_prepare")
            self._start = getattr(library, f"{artifact.symbol}_start")
            forget = getattr(library, f"{artifact.symbol}_forget")
        except (OSError, AttributeError) as error:
            raise KernelLoadError(
                f"kernel {artifact.name} cannot be loaded ({error})", "delete the cache and compile again"
            ) from error
        pointer = ctypes.c_void_p
        self._prepare.argtypes = (pointer, pointer, ctypes.c_int, pointer, pointer)
        self._start.argtypes = (pointer, pointer, pointer)
        forget.argtypes, forget.restype = (pointer,), None
        self._code = [compile(one.text, "<number>", "eval") for one in self.meta.numbers]
        self._empty = compile(self.meta.empty, "<empty>", "eval")
        self._names = [arg.name for arg in self.meta.args if not arg.pointer]
        self._count = len(self.meta.args)
        self._lock = threading.Lock()
        self._ready: dict[tuple[int, ...], _Ready] = {}
        self._stream: Callable[[int], int] = current_stream("cuda")
        self._profiler: tuple[Mapping[str, Any], str] = profiler_flag() or ({}, "")
        self._forget: Callable[[int], None] = forget

    def __call__(self, *args: object) -> None:
        import torch

        device = torch.cuda.current_device()
        planned: Any = None
        if len(args) > self._count:
            args, planned = args[:-1], args[-1]
        values = tuple([a if isinstance(a, int) else a.data_ptr() for a in args])  # type: ignore[attr-defined]
        key = (device, *values)
        ready = self._ready.get(key)
        if ready is None:
            ready = self._remember(key, device, values)
        if not ready.address:
            return
        flags, name = self._profiler
        noted = record_function(self.artifact.name) if flags.get(name) else contextlib.nullcontext()
        with noted:
            stream = self._stream(device)
            if not ready.scratch:
                self._check(self._start(ready.address, None, stream), "launching")
                return
            if planned is None or planned.nbytes < ready.scratch:
                # freed when this returns, on the stream that uses it: what comes later may have it
                planned = torch.empty(ready.scratch, dtype=torch.uint8, device=f"cuda:{device}")
            with self._lock:
                status = self._start(ready.address, planned.data_ptr(), stream)
            self._check(status, "launching")

    def _remember(self, key: tuple[int, ...], device: int, values: tuple[int, ...]) -> _Ready:
        with self._lock:
            if len(self._ready) >= _CACHED:
                self._ready.clear()
            ready = self._ready[key] = self._prepared(device, values)
            return ready

    def _prepared(self, device: int, values: tuple[int, ...]) -> _Ready:
        """The record of a launch; without an address where there is nothing to do."""
        import torch

        meta = self.meta
        if len(values) != len(meta.args):
            raise KernelLaunchError(
                f"kernel {self.artifact.name} takes {len(meta.args)} arguments, got {len(values)}"
            )
        sizes = [value for value, arg in zip(values, meta.args, strict=True) if not arg.pointer]
        known: dict[str, Any] = {"__builtins__": {"min": min, "max": max}}
        known.update(zip(self._names, sizes, strict=True))
        if eval(self._empty, known):
            return _Ready(0, 0, self._forget)
        numbers = [
            int(eval(code, known)) + (values[one.base] if one.base >= 0 else 0)
            for code, one in zip(self._code, meta.numbers, strict=True)
        ]
        packed = (ctypes.c_uint64 * len(values))(*(v & _WORD for v in values))
        extra = (ctypes.c_int64 * len(numbers))(*numbers)
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        address, scratch = ctypes.c_void_p(), ctypes.c_longlong(0)
        status = self._prepare(packed, extra, multiprocessors, ctypes.byref(address), ctypes.byref(scratch))
        self._check(status, "preparing")
        return _Ready(address.value or 0, scratch.value, self._forget)

    def _check(self, status: int, what: str) -> None:
        if not status:
            return
        words = f"CUTLASS reports status {status}"
        if status >= _CUDA_ERRORS:
            words = f"CUDA reports error {status - _CUDA_ERRORS}"
        text = f"{what} kernel {self.artifact.name} failed: {words}"
        if status == _CUDA_ERRORS + OUT_OF_MEMORY:
            import torch

            raise torch.OutOfMemoryError(text)
        raise KernelLaunchError(text, EARLIER_ERROR)
