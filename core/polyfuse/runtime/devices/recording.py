"""A recorder for devices that record what one stream is given."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from polyfuse.runtime.devices.device import Device
from polyfuse.runtime.devices.graphs import DeviceGraph, Program


class StreamRecorder(ABC):
    """Records what a stream of its own is given: a `GraphRecorder` of which the device's plugin says how a
    recording begins and how it ends. Pools are numbers, from 1 up.

    Args:
        device: its streams are used.
        index: of the device; None: the current one.
    """

    def __init__(self, device: Device, index: int | None = None) -> None:
        self.device = device
        self.index: int = device.current()() if index is None else index
        self._address = device.stream_address()
        self._pools = itertools.count(1)
        self._last: Any = None
        self._last_address: int | None = None

    @abstractmethod
    def begin(self, pool: int) -> None:
        """Record from now on what the current stream is given, with memory of a pool for what is allocated
        meanwhile. Raises if the device cannot.
        """

    @abstractmethod
    def end(self) -> DeviceGraph:
        """End the recording that the current stream is in, and return it."""

    def new_pool(self) -> int:
        """A pool of memory that recordings may share."""
        return next(self._pools)

    def is_recording(self) -> bool:
        """Whether what the current stream is given is being recorded already."""
        return self.device.is_recording()

    def follow(self) -> None:
        """Let the current stream wait for the one from which recorded memory was last used."""
        address = self._address(self.index)
        if address != self._last_address:
            current = self.device.current_stream(self.index)
            if self._last is not None:
                current.wait_stream(self._last)
            self._last, self._last_address = current, address

    def record(
        self, program: Program, args: list[Any], pool: int, generators: Sequence[torch.Generator]
    ) -> tuple[DeviceGraph, Sequence[Any]]:
        """Record `program(args)` without doing it. Returns the recording and the program's results; what the
        program raises is raised on, after the recording was ended and forgotten.
        """
        # what earlier work needed may be needed for the pool now
        self.device.synchronize(self.index)
        stream = self.device.new_stream(self.index)
        with self.device.guard(self.index), self.device.use_stream(stream):
            self.begin(pool)
            try:
                results = program(args)
            except BaseException:
                self.end().reset()
                raise
            return self.end(), results
