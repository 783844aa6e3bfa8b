"""CUDA for models that run without Python, as text of C++."""

from __future__ import annotations

from functools import cache
from importlib import resources

from polyfuse.plugin.host_library import HostDevice


@cache
def host_device() -> HostDevice:
    """NVIDIA's GPUs: memory, copies and launches through the driver."""
    text = resources.files("polyfuse_cuda").joinpath("host_runtime.h").read_text(encoding="utf-8")
    return HostDevice("cuda", text)
