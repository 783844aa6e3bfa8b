"""What recording asks of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

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
