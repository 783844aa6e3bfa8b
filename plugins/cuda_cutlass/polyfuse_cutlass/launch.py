"""Launching built kernels: tensor maps of the operands, arguments, and the driver's call."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelLaunchError
from polyfuse.runtime.launching import current_stream
from polyfuse_cutlass.artifact import Artifact, read_unit
from polyfuse_cutlass.driver import check, driver
from polyfuse_cutlass.meta import KernelMeta, TensorMap

__all__ = ["Kernel", "Sizes", "load_unit", "resolved"]

_MAX_DYNAMIC_SHARED = 8
_SWIZZLE_128B = 3
_PROMOTE_256B = 3
_MAP_BYTES = 128
_MAP_ALIGNMENT = 64
_KEPT_MAPS = 64
"""Tensor maps that a kernel keeps for addresses that come again."""


def load_unit(folder: Path) -> Mapping[str, Kernel]:
    """The kernels of a built folder by key, ready on the current device."""
    import torch

    torch.cuda.current_stream()  # makes the device's context current on this thread
    found: dict[str, Kernel] = {}
    for key, artifact in read_unit(folder).items():
        found[key] = Kernel(artifact, (folder / artifact.file).read_bytes())
        found[key].prepare()
    return found


@dataclass(frozen=True)
class _Loaded:
    """A kernel in one context."""

    function: ctypes.c_void_p
    device: int
    processors: int


@dataclass(frozen=True)
class Sizes:
    """What follows from size arguments."""

    tiles: int
    extents: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]


class Kernel:
    """A built kernel: called with the kernel's arguments, it launches on the current device and stream."""

    def __init__(self, artifact: Artifact, code: bytes) -> None:
        self.artifact = artifact
        self.meta: KernelMeta = artifact.meta
        self._code = code
        self._lock = threading.Lock()
        self._loaded: dict[int, _Loaded] = {}
        self._stream: Callable[[int], int] = current_stream("cuda")
        self._sizes: dict[tuple[int, ...], Sizes] = {}
        self._maps: dict[tuple[object, ...], Any] = {}
        self._others = [i for i, arg in enumerate(self.meta.args) if not arg.pointer]

    def prepare(self) -> None:
        """Load the code into the current device, so that a damaged file shows now."""
        self._here()

    def __call__(self, *args: object) -> None:
        values = [a if isinstance(a, int) else a.data_ptr() for a in args]  # type: ignore[attr-defined]
        if len(values) != len(self.meta.args):
            raise KernelLaunchError(
                f"kernel {self.artifact.name} takes {len(self.meta.args)} arguments, got {len(values)}"
            )
        sizes = self._sizes_of(tuple(values[i] for i in self._others))
        if sizes.tiles <= 0:
            return
        loaded = self._here()
        clusters = sizes.tiles
        if self.meta.lasting:
            room = loaded.processors * self.meta.resident // self.meta.cluster
            clusters = min(clusters, max(1, room))
        held = [self._map(number, one, values, sizes) for number, one in enumerate(self.meta.maps)]
        packed = (ctypes.c_uint64 * len(values))(*(v & 0xFFFFFFFFFFFFFFFF for v in values))
        parameters = (ctypes.c_void_p * (len(held) + 1))(
            *(address for address, _ in held), ctypes.addressof(packed)
        )
        status = driver().cuLaunchKernel(
            loaded.function,
            clusters * self.meta.cluster,
            1,
            1,
            self.meta.threads,
            1,
            1,
            self.meta.shared,
            ctypes.c_void_p(self._stream(loaded.device)),
            parameters,
            None,
        )
        check(status, f"launching kernel {self.artifact.name}")

    def _sizes_of(self, sizes: tuple[int, ...]) -> Sizes:
        found = self._sizes.get(sizes)
        if found is None:
            found = resolved(self.meta, sizes)
            if len(self._sizes) > _KEPT_MAPS:
                self._sizes.clear()
            self._sizes[sizes] = found
        return found

    def _map(self, number: int, one: TensorMap, values: list[int], sizes: Sizes) -> tuple[int, Any]:
        """A tensor map's address, and what keeps it alive."""
        address = values[one.arg] + sizes.offsets[number]
        key = (number, address, sizes.extents[number], sizes.strides[number])
        found: tuple[int, Any] | None = self._maps.get(key)
        if found is None:
            found = encoded(one, address, sizes.extents[number], sizes.strides[number], self.artifact.name)
            if len(self._maps) > _KEPT_MAPS:
                self._maps.clear()
            self._maps[key] = found
        return found

    def _here(self) -> _Loaded:
        """The kernel in the current context."""
        context = ctypes.c_void_p()
        check(driver().cuCtxGetCurrent(ctypes.byref(context)), "asking for the current device")
        found = self._loaded.get(context.value or 0)
        if found is None:
            with self._lock:
                found = self._load(context.value or 0)
        return found

    def _load(self, context: int) -> _Loaded:
        import torch

        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        what = f"loading kernel {self.artifact.name}"
        check(driver().cuModuleLoadData(ctypes.byref(module), self._code), what, True)
        symbol = self.artifact.symbol.encode()
        check(driver().cuModuleGetFunction(ctypes.byref(function), module, symbol), what, True)
        check(driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, self.meta.shared), what, True)
        device = torch.cuda.current_device()
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._loaded[context] = _Loaded(function, device, processors)
        return self._loaded[context]


def encoded(
    one: TensorMap, address: int, extents: tuple[int, ...], strides: tuple[int, ...], name: str
) -> tuple[int, Any]:
    """A tensor map as the driver writes it: its address, and the memory that holds it."""
    memory = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    place = -(-ctypes.addressof(memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
    rank = len(extents)
    status = driver().cuTensorMapEncodeTiled(
        ctypes.c_void_p(place),
        one.type,
        rank,
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*extents),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*one.box),
        (ctypes.c_uint32 * rank)(*(1 for _ in extents)),
        0,
        _SWIZZLE_128B,
        _PROMOTE_256B,
        0,
    )
    check(status, f"describing an operand of kernel {name}")
    return place, memory


def resolved(meta: KernelMeta, sizes: tuple[int, ...]) -> Sizes:
    """What follows from size arguments."""
    names = [arg.name for arg in meta.args if not arg.pointer]
    known: dict[str, Any] = dict(zip(names, sizes, strict=True))

    def value(text: str) -> int:
        return int(eval(text, {"__builtins__": {"min": min, "max": max}}, known))

    return Sizes(
        value(meta.tiles),
        # the driver takes no empty matrix; nothing of it is used
        tuple(tuple(max(1, value(text)) for text in one.extents) for one in meta.maps),
        tuple(tuple(value(text) for text in one.strides) for one in meta.maps),
        tuple(value(one.offset) for one in meta.maps),
    )
