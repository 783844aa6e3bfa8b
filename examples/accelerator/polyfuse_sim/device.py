"""The device as Polyfuse sees it."""

import itertools

import torch

import polyfuse_sim  # noqa: F401 - gives torch the device
from polyfuse.plugin import Device, DeviceProperties, Limits
from polyfuse_sim.driver import LIBRARY, check

MOST_ELEMENTS = 1 << 26
"""Kernels address elements with 32 bits, of which this runtime uses 26."""


class SimDevice(Device):
    """Host memory behind asynchronous queues."""

    def stream_address(self):
        return lambda index: torch.sim.current_stream(index).stream_id

    def properties(self, index=None):
        return DeviceProperties("simulated accelerator", memory_bytes=1 << 30, units=4, alignment=256)

    def limits(self):
        wide = (torch.float64, torch.complex64, torch.complex128)
        return Limits(missing=frozenset(wide), most_elements=MOST_ELEMENTS)

    def generator(self, index=None):
        return None  # random numbers are the host's

    def recorder(self, index=None):
        return SimRecorder(torch.sim.current_device() if index is None else index)


class SimRecorder:
    """Records the work of one device."""

    pools = itertools.count(1)

    def __init__(self, index):
        self.index, self.last = index, None

    def new_pool(self):
        return next(self.pools)

    def is_recording(self):
        return torch.sim.is_current_stream_capturing()

    def follow(self):
        stream = torch.sim.current_stream(self.index)
        if self.last is not None and self.last != stream:
            stream.wait_stream(self.last)
        self.last = stream

    def record(self, program, args, pool, generators):
        torch.sim.synchronize(self.index)
        with torch.sim.device(self.index), torch.sim.stream(torch.sim.Stream(self.index)):
            check(LIBRARY.sim_capture_begin(pool))
            try:
                results = program(args)
            except BaseException:
                LIBRARY.sim_forget(LIBRARY.sim_capture_end())
                raise
            return SimGraph(LIBRARY.sim_capture_end()), results


class SimGraph:
    """Recorded work."""

    def __init__(self, address):
        self.address = address

    def replay(self):
        LIBRARY.sim_replay(self.address)

    def reset(self):
        if self.address:
            LIBRARY.sim_forget(self.address)
            self.address = None

    __del__ = reset
