"""`torch.sim`: what torch and programs expect of a device's module, mostly torch's own for all devices."""

import functools

import torch

from polyfuse_sim import driver

current_device = torch.accelerator.current_device_index
set_device = torch.accelerator.set_device_index
current_stream = torch.accelerator.current_stream
synchronize = torch.accelerator.synchronize
device_count = driver.LIBRARY.sim_devices
device = torch.accelerator.device_index
Event = functools.partial(torch.Event, "sim")


def is_available():
    return True


is_initialized = is_available


def _lazy_init():
    """Nothing is left to do, but torch 2.11 waits only for devices whose module has this function."""


def _is_in_bad_fork():
    return False


def is_current_stream_capturing():
    return bool(driver.LIBRARY.sim_is_capturing())


def Stream(device=None):
    return torch.Stream(torch.device("sim", current_device() if device is None else device))


def stream(stream):
    """A context in which a stream is the current one: the stream itself is one."""
    return stream


def _memory(kind, index=None):
    return driver.memory(current_device() if index is None else index)[kind]


memory_allocated, max_memory_allocated, memory_reserved = (functools.partial(_memory, k) for k in range(3))


def manual_seed_all(seed):
    """Random numbers are the host's."""


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]
