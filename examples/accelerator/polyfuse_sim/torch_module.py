"""`torch.sim`: what torch and programs expect of a device's module."""

import torch

from polyfuse_sim import driver

current_device = torch.accelerator.current_device_index
set_device = torch.accelerator.set_device_index
current_stream = torch.accelerator.current_stream
synchronize = torch.accelerator.synchronize


def device_count():
    return driver.LIBRARY.sim_devices()


def is_available():
    return True


def is_initialized():
    return True


def is_current_stream_capturing():
    return bool(driver.LIBRARY.sim_is_capturing())


def Stream(device=None):
    return torch.Stream(device=torch.device("sim", current_device() if device is None else device))


def Event(enable_timing=False):
    return torch.Event(device="sim", enable_timing=enable_timing)


class device:
    """A context in which a device is the current one."""

    def __init__(self, index):
        self.index = torch.device("sim", index).index if not isinstance(index, torch.device) else index.index

    def __enter__(self):
        self.before = current_device()
        set_device(self.index)

    def __exit__(self, *_):
        set_device(self.before)


class stream:
    """A context in which a stream is the current one."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.before = current_stream(self.stream.device.index)
        torch.accelerator.set_stream(self.stream)

    def __exit__(self, *_):
        torch.accelerator.set_stream(self.before)


def memory_allocated(index=None):
    return driver.memory(current_device() if index is None else index)[0]


def max_memory_allocated(index=None):
    return driver.memory(current_device() if index is None else index)[1]


def memory_reserved(index=None):
    return driver.memory(current_device() if index is None else index)[2]


def manual_seed_all(seed):
    """Random numbers are the host's."""


def _is_in_bad_fork():
    return False


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]
