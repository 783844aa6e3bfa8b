"""The device as Polyfuse sees it."""

import torch

import polyfuse_sim  # noqa: F401 - gives torch the device
from polyfuse.plugin import Device, DeviceProperties, Limits, StreamRecorder
from polyfuse_sim.driver import LIBRARY, check

MOST_ELEMENTS = 1 << 26
"""Kernels address elements with 32 bits, of which this runtime uses 26."""


class SimDevice(Device):
    """Host memory behind asynchronous queues."""

    def properties(self, index=None):
        return DeviceProperties("simulated accelerator", units=4, alignment=256)

    def limits(self):
        wide = (torch.float64, torch.complex64, torch.complex128)
        return Limits(missing=frozenset(wide), most_elements=MOST_ELEMENTS)

    def generator(self, index=None):
        return None  # random numbers are the host's

    def recorder(self, index=None):
        return SimRecorder(self, index)


class SimRecorder(StreamRecorder):
    """Records the work of one device."""

    def begin(self, pool):
        check(LIBRARY.sim_capture_begin(pool))

    def end(self):
        return SimGraph(LIBRARY.sim_capture_end())


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
