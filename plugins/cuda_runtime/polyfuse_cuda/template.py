"""Kernels whose frame is written by hand: how they are called as part of a program.

They are calls in a graph, not loops that the scheduler knows, so they are loaded when they are first called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from polyfuse.plugin import Launchable

__all__ = ["ALIGNMENT", "TemplateKernel"]

ALIGNMENT = 16
"""Bytes of which the addresses of an aligned kernel's tensors are multiples."""
_LOCK = threading.Lock()


class TemplateKernel:
    """A call of a kernel, made when it is first needed.

    Called with the kernel's arguments in order: tensors, then sizes. Where all tensors begin at multiples of
    16 bytes, a kernel is used that relies on it.

    Args:
        name: of the kernel, for people.
        load: gives a launcher on the current device, of the kernel for aligned tensors or for any.
    """

    records = True
    """It only launches, so that a program with it can be recorded."""

    def __init__(self, name: str, load: Callable[[bool], Launchable]) -> None:
        self.__name__ = name
        self._load = load
        self._ready: dict[bool, Launchable] = {}

    def __call__(self, *arguments: Any) -> None:
        """Launch it on the device that its tensors are on."""
        first = arguments[0]
        aligned = all(a.data_ptr() % ALIGNMENT == 0 for a in arguments if not isinstance(a, int))
        launch = self._ready.get(aligned)
        if first.device.type == "cpu" or first.device.index == _current_device():
            (launch or self._loaded(aligned))(*arguments)
            return
        with _device(first.device):
            (launch or self._loaded(aligned))(*arguments)

    def _loaded(self, aligned: bool) -> Launchable:
        with _LOCK:
            if aligned not in self._ready:
                self._ready[aligned] = self._load(aligned)
            return self._ready[aligned]


def _current_device() -> int:
    import torch

    return int(torch.cuda.current_device())


def _device(device: Any) -> Any:
    import torch

    return torch.cuda.device(device)
