"""What recording asks of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

Program = Callable[[list[Any]], Sequence[Any]]
"""A compiled program: a list of inputs, which it empties, in; results out."""


class DeviceGraph(Protocol):
    """Recorded work of a device, such as a CUDA graph."""

    def replay(self) -> None:
        """Give all of it to the current stream of the device where it was recorded, which need not be the
        current device.
        """

    def reset(self) -> None:
        """Forget it."""


@dataclass(frozen=True)
class Event:
    """What an allocator did, in its order: it allocated, took memory back, or was called by `Watched.mark`,
    for which address and bytes are 0.
    """

    kind: Literal["allocation", "release", "call"]
    address: int = 0
    nbytes: int = 0


class Watched(Protocol):
    """An allocator that is watched. `events` are those of the current stream, once it is over."""

    @property
    def events(self) -> Sequence[Event]: ...

    def mark(self) -> None:
        """A call of the program begins."""


class PoolMemory(Protocol):
    """The memory of a pool that large allocations come from, while something is recorded in it."""

    def blocks(self) -> list[tuple[int, int, bool]]:
        """Address and bytes of each block, and whether it is in use; by address."""

    def take(self, nbytes: int) -> tuple[int, Any]:
        """Allocate: the address, and what holds the memory as long as it lives."""


class Allocations(Protocol):
    """The allocator of a device that takes the smallest block that is large enough, or grows.

    Attributes:
        least: bytes from which on allocations share what `PoolMemory` is about.
        step: bytes by which that grows.
    """

    @property
    def least(self) -> int: ...

    @property
    def step(self) -> int: ...

    def watch(self) -> AbstractContextManager[Watched | None]:
        """Watch it for a time; None: somebody else does, or it cannot be watched."""

    def pool(self, handle: Any) -> PoolMemory:
        """The memory of a pool."""


class GraphRecorder(Protocol):
    """Records the work that is given to one device."""

    def new_pool(self) -> Any:
        """A pool of memory that recordings may share: what is free when one is made, that one may use."""

    def is_recording(self) -> bool:
        """Whether what the current stream is given is being recorded already."""

    def follow(self) -> None:
        """Let the current stream wait for the one from which recorded memory was last used."""

    def record(
        self, program: Program, args: list[Any], pool: Any, generators: Sequence[torch.Generator]
    ) -> tuple[DeviceGraph, Sequence[Any]]:
        """Record what `program(args)` gives the device, with its results in memory of the pool.

        Nothing is computed yet. `generators` are those that the program draws from, besides the device's own.
        If it raises, all is as it was before, but for the pool, which is not recorded in again.
        """


def allocations_of(recorder: GraphRecorder) -> Allocations | None:
    """The device's allocator, where recordings can be guided to addresses: what the method `allocations` of a
    recorder returns, if it has one.
    """
    found: Callable[[], Allocations | None] | None = getattr(recorder, "allocations", None)
    return None if found is None else found()
