"""Launching built kernels: tensor maps of the operands, arguments, and the driver's call."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from polyfuse.base.errors import KernelLaunchError, KernelLoadError, PolyfuseError
from polyfuse.runtime import record_function
from polyfuse.runtime.launching import current_stream, profiler_flag
from polyfuse_cuda.driver import EARLIER_ERROR, MAX_DYNAMIC_SHARED, OUT_OF_MEMORY, Driver
from polyfuse_cuda.launch import DEPENDENT_LAUNCH, launch_config, parameters
from polyfuse_cutlass.build.artifact import Artifact, read_unit
from polyfuse_cutlass.build.meta import KernelMeta, TensorMap

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


_SWIZZLE_128B = 3
_PROMOTE_256B = 3
_MAP_BYTES = 128
_MAP_ALIGNMENT = 64
_NO_CONTEXT = 201
_WORD = (1 << 64) - 1
_CACHED = 1024
"""Launches that a kernel keeps for arguments that come again."""


def load_unit(folder: Path) -> Mapping[str, Kernel]:
    """The kernels of a built folder by key, ready on the current device."""
    found: dict[str, Kernel] = {}
    for key, artifact in read_unit(folder).items():
        kernel = found[key] = Kernel(artifact, (folder / artifact.file).read_bytes())
        kernel.prepare()
    return found


@dataclass(frozen=True)
class _Loaded:
    """A kernel in one context. `clusters`: how many of its clusters run at once."""

    function: ctypes.c_void_p
    device: int
    clusters: int


@dataclass(frozen=True)
class Sizes:
    """What follows from size arguments.

    Attributes:
        tiles: clusters that all work needs.
        extents, strides, offsets: of each tensor map, as `TensorMap` has them.
    """

    tiles: int
    extents: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True)
class _Launch:
    """A launch with certain arguments, ready to be repeated.

    Attributes:
        loaded: the kernel where it runs.
        blocks: of the grid; none, and nothing is launched.
        parameters: addresses of the parameters.
        held: the memory at these addresses.
        configs: the grid and all that goes with it, by stream.
    """

    loaded: _Loaded
    blocks: int
    parameters: Any
    held: tuple[object, ...]
    configs: dict[int, Any]


class Kernel:
    """A built kernel: called with the kernel's arguments, it launches on the current device and stream."""

    def __init__(self, artifact: Artifact, code: bytes) -> None:
        self.artifact = artifact
        self.meta = KernelMeta.parse(artifact.meta)
        self._code = code
        self._lock = threading.Lock()
        self._loaded: dict[int, _Loaded] = {}
        self._stream: Callable[[int], int] = current_stream("cuda")
        self._profiler: tuple[Mapping[str, Any], str] = profiler_flag() or ({}, "")
        self._launches: dict[tuple[int, ...], _Launch] = {}
        self._start = driver().library.cuLaunchKernelEx
        early = self.meta.dependent_launch and driver().has_dependent_launch()
        self._attributes = ((DEPENDENT_LAUNCH, (1,)),) if early else ()

    def prepare(self) -> None:
        """Load the code into the current device, so that a damaged file shows now."""
        self._here()

    def __call__(self, *args: object) -> None:
        key = tuple([a if isinstance(a, int) else a.data_ptr() for a in args])  # type: ignore[attr-defined]
        launch = self._launches.get(key)
        if launch is None:
            launch = self._prepared(key)
        if not launch.blocks:
            return
        flags, name = self._profiler
        if flags.get(name):
            with record_function(self.artifact.name):
                self._repeat(launch)
        else:
            self._repeat(launch)

    def _repeat(self, launch: _Launch) -> None:
        status = self._started(launch)
        if status == _NO_CONTEXT:
            # a thread that has used no device yet
            _enter()
            status = self._started(launch)
        if status:
            check(status, f"launching kernel {self.artifact.name}")

    def _started(self, launch: _Launch) -> int:
        stream = self._stream(launch.loaded.device)
        config = launch.configs.get(stream)
        if config is None:
            grid, meta = (launch.blocks, 1, 1), self.meta
            made = launch_config(grid, meta.threads, meta.shared, stream, self._attributes)
            config = ctypes.pointer(made)
            if len(launch.configs) >= _CACHED:
                launch.configs.clear()
            launch.configs[stream] = config
        status: int = self._start(config, launch.loaded.function, launch.parameters, None)
        return status

    def _prepared(self, values: tuple[int, ...]) -> _Launch:
        meta = self.meta
        if len(values) != len(meta.args):
            raise KernelLaunchError(
                f"kernel {self.artifact.name} takes {len(meta.args)} arguments, got {len(values)}"
            )
        sizes = resolved(meta, tuple(v for v, arg in zip(values, meta.args, strict=True) if not arg.pointer))
        loaded = self._here()
        clusters = max(0, sizes.tiles)
        if meta.read_only:
            clusters = min(clusters, loaded.clusters)
        maps = []
        for one, extents, strides, offset in zip(
            meta.maps, sizes.extents, sizes.strides, sizes.offsets, strict=True
        ):
            if clusters:
                maps.append(encoded(one, values[one.arg] + offset, extents, strides, self.artifact.name))
        packed = (ctypes.c_uint64 * len(values))(*(v & _WORD for v in values))
        given = parameters([*(address for address, _ in maps), ctypes.addressof(packed)])
        launch = _Launch(loaded, clusters * meta.cluster, given, (packed, maps), {})
        if len(self._launches) >= _CACHED:
            self._launches.clear()
        self._launches[values] = launch
        return launch

    def _here(self) -> _Loaded:
        """The kernel in the current context."""
        context = _context()
        if not context:
            _enter()
            context = _context()
        found = self._loaded.get(context)
        if found is None:
            with self._lock:
                found = self._loaded.get(context) or self._load(context)
        return found

    def _load(self, context: int) -> _Loaded:
        import torch

        shared = (MAX_DYNAMIC_SHARED, self.meta.shared)
        status, function = driver().load_function(self._code, self.artifact.symbol, [shared])
        check(status, f"loading kernel {self.artifact.name}", True)
        device = torch.cuda.current_device()
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        clusters = multiprocessors * self.meta.resident // self.meta.cluster
        if self.meta.cluster > 1:
            clusters = min(clusters, self._clusters_at_once(function) or clusters)
        self._loaded[context] = _Loaded(function, device, max(1, clusters))
        return self._loaded[context]

    def _clusters_at_once(self, function: ctypes.c_void_p) -> int:
        """How many clusters run at once: none crosses a group of multiprocessors. 0: nobody knows."""
        config = launch_config((self.meta.cluster, 1, 1), self.meta.threads, self.meta.shared, None)
        found, library = ctypes.c_int(0), driver().library
        status = library.cuOccupancyMaxActiveClusters(ctypes.byref(found), function, ctypes.byref(config))
        return 0 if status else found.value


def _context() -> int:
    """This thread's context; 0 for none."""
    status, context = driver().context()
    check(status, "asking for the current device")
    return context


def _enter() -> None:
    """Make the context of torch's current device that of this thread."""
    import torch

    torch.cuda.set_device(torch.cuda.current_device())
    # torch enters a context when it first does something there
    torch.cuda.current_stream().query()


def encoded(
    one: TensorMap, address: int, extents: tuple[int, ...], strides: tuple[int, ...], name: str
) -> tuple[int, Any]:
    """A tensor map as the driver writes it: its address, and the memory that holds it."""
    memory = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    aligned = -(-ctypes.addressof(memory) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
    rank = len(extents)
    status = driver().library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(aligned),
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
    return aligned, memory


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
