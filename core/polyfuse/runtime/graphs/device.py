"""What recording asks of a device, and which devices can do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from polyfuse.torch_compat.devices.cuda_graphs import graphs_of

__all__ = ["DeviceGraph", "GraphDevice", "Program", "graph_device", "replace_graph_device"]

Program = Callable[[list[Any]], Sequence[Any]]
"""A compiled program: a list of inputs, which it empties, in; results out."""


class DeviceGraph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Give all of it to the current stream."""

    def reset(self) -> None:
        """Forget it."""


class GraphDevice(Protocol):
    """A device that can record."""

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


Maker = Callable[[str], GraphDevice | None]

_replacements: dict[str, Maker] = {}


def graph_device(device: str) -> GraphDevice | None:
    """What records the work of a device such as `"cpu"`; None if nothing can."""
    replacement = _replacements.get(torch.device(device).type)
    return replacement(device) if replacement is not None else graphs_of(device)


def replace_graph_device(device_type: str, maker: Maker | None) -> None:
    """Let `maker` answer for a type of device, or torch again (None): for tests, and for devices torch
    lacks.
    """
    if maker is None:
        _replacements.pop(device_type, None)
    else:
        _replacements[device_type] = maker
