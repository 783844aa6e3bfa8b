"""torch's allocator of CUDA memory, for recordings that are guided to addresses.

It takes the smallest free block that is large enough. What asks for more than a MiB shares one range of
addresses of a pool, if segments grow; smaller ones have another range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from polyfuse.runtime.devices.graphs import Event
from polyfuse.runtime.launching import (
    allocation_history,
    clear_workspaces,
    current_stream,
    pool_blocks,
)

_MARK = 3583
"""Bytes of an allocation that stands for a call of a program: nothing else asks for as many."""


class CudaPool:
    """The memory of a pool in a recording of the current stream."""

    def __init__(self, index: int, handle: Any) -> None:
        self._index = index
        self._device = torch.device("cuda", index)
        self._handle = handle

    def blocks(self) -> list[tuple[int, int, bool]]:
        """Address and bytes of each block, and whether it is in use; by address."""
        return pool_blocks("cuda", self._index, self._handle)

    def take(self, nbytes: int) -> tuple[int, torch.UntypedStorage]:
        """Allocate."""
        storage = torch.UntypedStorage(nbytes, device=self._device)
        return storage.data_ptr(), storage


class _Watched:
    """What happened, once it is over."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.events: Sequence[Event] = ()

    def mark(self) -> None:
        """A call of the program begins."""
        torch.UntypedStorage(_MARK, device=self._device)


class CudaAllocations:
    """The allocator of one device."""

    least = (1 << 20) + 1
    step = 20 << 20

    def __init__(self, index: int) -> None:
        self._index = index

    @staticmethod
    def are_known(index: int) -> bool:
        """Whether this torch says what a pool consists of."""
        try:
            pool_blocks("cuda", index, (0, 0))
        except (RuntimeError, TypeError, KeyError, AttributeError):
            return False
        return True

    @contextmanager
    def watch(self) -> Iterator[_Watched | None]:
        """Watch what the current stream allocates. Libraries ask for their workspaces once more meanwhile, as
        they do in a recording.
        """
        stream = int(current_stream("cuda")(self._index))
        with allocation_history("cuda", self._index, stream) as history:
            if history is None:
                yield None
                return
            clear_workspaces("cuda")
            watched = _Watched(torch.device("cuda", self._index))
            yield watched
        events = []
        for allocated, address, nbytes in history:
            if nbytes != _MARK:
                events.append(Event("allocation" if allocated else "release", address, nbytes))
            elif allocated:
                events.append(Event("call"))
        watched.events = events

    def pool(self, handle: Any) -> CudaPool:
        """The memory of a pool."""
        return CudaPool(self._index, handle)
