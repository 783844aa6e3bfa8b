"""A type of device, as the core sees it: the class that a plugin derives from for a device of its own.

The defaults ask the module that torch has for the type (`torch.get_device_module`), by the names that are
usual there. So a device registered with torch works with `Device` as it is, without recording, rounded
products and limits; a plugin's class says what it knows better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch

from polyfuse.torch_compat import bindings
from polyfuse.torch_compat.devices.launching import current_stream

if TYPE_CHECKING:
    from polyfuse.runtime.devices.graphs import GraphRecorder

Allocate = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]
"""`(size, stride, dtype) -> Tensor`: an uninitialised tensor; sizes and strides are tuples of integers."""

_LATENCY = 20e-6
"""Seconds in which a collective begins and ends."""


class Event(Protocol):
    """A point in a stream, with the time at which the device reaches it."""

    def record(self) -> None:
        """Put it behind what the current stream was given so far."""

    def synchronize(self) -> None:
        """Wait until the device has reached it."""

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from this event to another, by the device's clock; both were reached."""


@dataclass(frozen=True)
class DeviceProperties:
    """The properties of one device.

    Attributes:
        name: its model, for people and for the keys of measurements.
        units: processors that work side by side, each on thread blocks of its own; 0: few, as on a CPU.
        cache_bytes: of the last cache; 0: it has none.
        bandwidth: bytes that memory moves in a second, roughly.
        operations: additions and multiplications of GEMMs in a second, roughly.
        alignment: bytes of which every address that the allocator gives is a multiple.
    """

    name: str
    units: int = 0
    cache_bytes: int = 0
    bandwidth: float = 20e9
    operations: float = 200e9
    alignment: int = 64


@dataclass(frozen=True)
class Limits:
    """What kernels on a device cannot do. Backends are not asked about nodes beyond these limits: they run in
    eager mode, with the limit as the reason.

    Attributes:
        missing: element types that the device cannot load, compute or store, such as ``torch.float64``.
        most_elements: the largest number of elements that one buffer may have, where addresses in kernels are
            narrower than 64 bits; 0: no limit. A buffer of unknown size is taken to be within it, and the
            device checks it when the kernel is launched.
    """

    missing: frozenset[torch.dtype] = frozenset()
    most_elements: int = 0


@dataclass(frozen=True)
class MemoryStatistics:
    """Bytes of device memory, as its allocator counts them: in tensors now, in tensors at most since the
    process began, and held by the allocator.
    """

    allocated: int
    peak: int
    reserved: int


class Device:
    """One type of device. One object serves the process and may be called by several threads.

    Args:
        type: as `torch.device` spells it, without a number: ``"cuda"``.

    `index` is always the number of one device of the type; None is the current one.
    """

    is_host: ClassVar[bool] = False
    """Whether its memory is the host's and calls return when the work is done. Native host programs keep
    plain memory on such a device alone, and nothing waits for it."""

    bernoulli_dropout: ClassVar[bool] = False
    """Whether eager mode draws the mask of dropout with `aten.bernoulli`. If so, the rest of dropout is
    compiled; if not, eager mode's own dropout stays whole, which keeps its random numbers."""

    fused_attention: ClassVar[bool] = False
    """Whether the library has fused attention that is faster than matmuls and a softmax, for operands that
    are contiguous along their last axis. Others are copied for it."""

    spelled_attention: ClassVar[Mapping[torch.dtype, int]] = {}
    """Types in which attention that a model spells out, as matmuls around a softmax, is replaced by fused
    attention in inference, and the fewest queries from which that is faster."""

    recorded_collectives: ClassVar[frozenset[str]] = frozenset()
    """What carries out collectives that take part in recordings, as torch names backends of groups: ``nccl``.
    """

    timeless_switches: ClassVar[frozenset[str]] = frozenset()
    """Names of `switches` that change nothing about how long work takes: measurements hold whatever they are.
    """

    memory_functions: ClassVar[tuple[str, str, str]] = ("", "", "")
    """A library of torch's, and in it two C functions that take memory of the current device from the
    allocator of tensors, for work in the current stream, and give it back: ``int f(uint64_t bytes, void**
    at)``, which returns 0 on success, and ``int g(void* at)``. Where there are none, launchers make tensors.
    """

    network: ClassVar[float] = 1e9
    """Bytes that messages to other processes move in a second, roughly."""

    link: ClassVar[float] = 4e9
    """The same to processes on devices of this host."""

    def __init__(self, type: str) -> None:
        self.type = type

    def module(self) -> Any:
        """The module that torch has for the type."""
        return torch.get_device_module(self.type)

    # Which devices there are.

    def count(self) -> int:
        """How many there are in this process."""
        return int(self.module().device_count())

    def current(self) -> Callable[[], int]:
        """The cheapest function that gives the number of the current one. Programs call it at each call."""
        return bindings.current_device(self.type)

    def guard(self, index: int) -> AbstractContextManager[Any]:
        """A context in which a device is the current one."""
        guard: AbstractContextManager[Any] = self.module().device(index)
        return guard

    # Streams, events, waiting.

    def current_stream(self, index: int | None = None) -> Any:
        """The stream that the calling thread gives work to."""
        return self.module().current_stream(index)

    def stream_address(self) -> Callable[[int], int]:
        """A function from a device's number to its current stream, as a number by which launchers know it."""
        return current_stream(self.type)

    def stream_function(self) -> int:
        """Address of a C function of the same meaning, ``int f(int32_t device, void** stream)``, which
        returns 0 on success; 0: there is none.
        """
        return 0

    def use_stream(self, stream: Any) -> AbstractContextManager[Any]:
        """A context in which the calling thread gives its work to another stream."""
        used: AbstractContextManager[Any] = self.module().stream(stream)
        return used

    def new_stream(self, index: int | None = None) -> Any:
        """A stream besides the default one."""
        return self.module().Stream(index)

    def event(self) -> Event:
        """An event that measures time."""
        event: Event = self.module().Event(enable_timing=True)
        return event

    def synchronize(self, index: int | None = None) -> None:
        """Wait until a device has done all its work. Raises what a kernel failed with."""
        self.module().synchronize(index)

    # Memory.

    def allocator(self, index: int | None = None) -> Allocate:
        """What makes uninitialised tensors on a device; the cheapest function there is."""
        if index is None:
            fast = bindings.fast_empty_strided(self.type)
            if fast is not None:
                return fast
        where = torch.device(self.type, index) if index is not None else torch.device(self.type)

        def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.empty_strided(size, stride, dtype=dtype, device=where)

        return empty_strided

    def copy(self, target: torch.Tensor, source: torch.Tensor, wait: bool = True) -> None:
        """Copy between devices, or to and from the host; both have one shape and type.

        Without `wait` the call may return before it is done, and work given to the current stream later sees
        the copy. The host's tensor must not change meanwhile.
        """
        target.copy_(source, non_blocking=not wait)

    def memory(self, index: int | None = None) -> MemoryStatistics | None:
        """How much memory is in use; None: the allocator does not count."""
        module = self.module()
        if not hasattr(module, "memory_allocated"):
            return None
        names = ("memory_allocated", "max_memory_allocated", "memory_reserved")
        return MemoryStatistics(*(int(getattr(module, name)(index)) for name in names))

    # What it can do.

    def properties(self, index: int | None = None) -> DeviceProperties:
        """What is known of a device. `Backend.target_info` derives its answer from this by default."""
        return DeviceProperties(self.type)

    def limits(self) -> Limits:
        """What kernels cannot do on any device of the type."""
        return Limits()

    # How libraries compute there.

    def rounds(self, what: Literal["matmuls", "convolutions"]) -> bool:
        """Whether eager mode may round their float32 operands to ten bits of fraction now (TF32)."""
        return False

    def switches(self) -> Mapping[str, object]:
        """The switches of torch that decide how libraries for this device compute, by name: part of the keys
        of compiled graphs, and set by `set_switches` in the benchmark worker.
        """
        return {}

    def set_switches(self, switches: Mapping[str, object]) -> None:
        """Set what `switches` read in another process."""

    def facts(self, index: int | None = None) -> str:
        """What compiled graphs depend on besides the backends' descriptions: the model. Part of keys."""
        return f"{self.type} {self.properties(index).name}"

    def generator(self, index: int | None = None) -> torch.Generator | None:
        """A random number generator on a device that nobody else draws from; None: it has none, and the host
        draws.
        """
        where = torch.device(self.type) if index is None else torch.device(self.type, index)
        try:
            return torch.Generator(device=where)
        except RuntimeError:
            return None

    # Recording.

    def recorder(self, index: int | None = None) -> GraphRecorder | None:
        """What records the work of a device; None: it cannot be recorded. Asked once for each device."""
        return None

    def is_recording(self) -> bool:
        """Whether what the calling thread gives the current stream is only recorded."""
        asks = getattr(self.module(), "is_current_stream_capturing", None)
        return asks is not None and bool(asks())

    # Communication.

    def collective_seconds(
        self, op: str, nbytes: int, bandwidth: float = 0.0, ranks: int = 0, on_host: bool = False
    ) -> float:
        """How long a collective takes, roughly: as rings of processes do it, each of which already has its
        own part.

        Args:
            op: the operator, such as ``_c10d_functional.all_reduce``.
            nbytes: of the larger of what it reads and writes.
            bandwidth: bytes in a second, if the user says so (option `network_bandwidth`); 0: `network`, or
                `link` on one host.
            ranks: of the processes; 0: not known, and taken to be many.
            on_host: whether all of them are on this host.
        """
        if ranks == 1:
            return _LATENCY
        # a sum goes around twice: to be made, and to be known
        rounds = 2.0 if "all_reduce" in op else 1.0
        if ranks and "broadcast" not in op:
            rounds *= (ranks - 1) / ranks
        if not bandwidth:
            bandwidth = self.link if on_host else self.network
        return _LATENCY + rounds * nbytes / bandwidth
