"""An allocator that takes the smallest free block that is large enough, or grows: as that of a GPU does it.

It hands out addresses at which there is no memory, so nothing may be read or written there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from polyfuse.runtime.devices.graphs import Event
from polyfuse.runtime.graphs.addresses import aligned
from polyfuse.torch_compat.devices.device_graphs import storage_at

CPU = torch.device("cpu")


class FakeAllocator:
    """One range of addresses. What was freed is noticed when something is asked for.

    Attributes:
        least, step: as in `Allocations`.
        mapped: how far it has grown, in bytes.
    """

    def __init__(self, base: int = 1 << 40, least: int = 1024, step: int = 1 << 16) -> None:
        self.base, self.least, self.step = base, least, step
        self.mapped = 0
        self.used: dict[int, tuple[int, StorageWeakRef]] = {}
        self.small = base + (1 << 38)
        self.events: list[Event] | None = None

    def free(self) -> None:
        """Notice what nobody holds any more."""
        for address, (_, storage) in list(self.used.items()):
            if storage.expired():
                del self.used[address]
                self._note(Event("release", address))

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        self.free()
        if nbytes < self.least:
            self.small += 4096
            storage = storage_at(self.small, nbytes, CPU)
            self._note(Event("allocation", self.small, nbytes))
            return storage
        size = aligned(nbytes)
        gaps = [(n, a) for a, n, used in self.blocks() if not used and n >= size]
        if gaps:
            address = min(gaps)[1]
        else:
            address = max((a + aligned(n) for a, (n, _) in self.used.items()), default=self.base)
            missing = address + size - self.base - self.mapped
            self.mapped += -(-missing // self.step) * self.step
        storage = storage_at(address, nbytes, CPU)
        self.used[address] = nbytes, StorageWeakRef(storage)
        self._note(Event("allocation", address, nbytes))
        return storage

    def blocks(self) -> list[tuple[int, int, bool]]:
        self.free()
        found = []
        at = self.base
        for address, (nbytes, _) in sorted(self.used.items()):
            assert address >= at, "two allocations overlap"
            if address > at:
                found.append((at, address - at, False))
            found.append((address, aligned(nbytes), True))
            at = address + aligned(nbytes)
        if at < self.base + self.mapped:
            found.append((at, self.base + self.mapped - at, False))
        return found

    def take(self, nbytes: int) -> tuple[int, Any]:
        storage = self.allocate(nbytes)
        return storage.data_ptr(), storage

    def tensor(self, nbytes: int) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8).set_(self.allocate(nbytes), 0, (nbytes,), (1,))

    def mark(self) -> None:
        self.free()
        self._note(Event("call"))

    def _note(self, event: Event) -> None:
        if self.events is not None:
            self.events.append(event)


class FakeWatched:
    """What it did while it was watched."""

    def __init__(self, allocator: FakeAllocator) -> None:
        self.events: list[Event] = []
        self.mark = allocator.mark


class FakeAllocations:
    """What a recorder knows of it: programs run with one `ordinary` memory, and are recorded in pools."""

    def __init__(self, ordinary: FakeAllocator, busy: bool = False) -> None:
        self.ordinary = ordinary
        self.least, self.step = ordinary.least, ordinary.step
        self.busy = busy

    @contextmanager
    def watch(self) -> Iterator[Any]:
        if self.busy:
            yield None
            return
        self.ordinary.free()
        watched = FakeWatched(self.ordinary)
        self.ordinary.events = watched.events
        yield watched
        self.ordinary.free()
        self.ordinary.events = None

    def pool(self, handle: FakeAllocator) -> FakeAllocator:
        return handle
