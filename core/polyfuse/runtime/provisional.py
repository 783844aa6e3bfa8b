"""Kernels that may be replaced while a program runs, such as one whose first launch is still to be seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from polyfuse.base.errors import is_from_model

Launch = Callable[..., Any]


class Provisional:
    """A kernel that a program calls until something else replaces it.

    Attributes:
        launch: the kernel itself.
        current: what is called from now on; None until that is decided.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.current: Launch | None = None
        self._put: Callable[[Launch], None] | None = None

    def attach(self, put: Callable[[Launch], None]) -> None:
        """Set the function that replaces this kernel by another in the program."""
        self._put = put

    def use(self, function: Launch) -> None:
        """Call a function from now on."""
        self.current = function
        if self._put is not None:
            self._put(function)

    @property
    def pending(self) -> bool:
        """Whether a launch has to be seen before anything may call the kernel by its address."""
        return False

    @property
    def works(self) -> Launch | None:
        """What may be launched from now on past this one, with sizes that it was compiled for; None as long
        as that is not known.
        """
        return self.current

    @property
    def replaced(self) -> bool:
        """Whether something other than the kernel is called."""
        return self.current is not None and self.current is not self.launch


def is_recoverable(error: Exception) -> bool:
    """Whether another kernel may do better than one that raised: not where the model is at fault, memory is
    used up, or time that the caller set has passed.
    """
    return not (is_from_model(error) or is_out_of_memory(error) or isinstance(error, TimeoutError))


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device or the CPU has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # neither torch's allocator for the CPU nor the start of a device has an exception of its own
    words = str(error)
    return "DefaultCPUAllocator" in words or (
        type(error) in (RuntimeError, torch.AcceleratorError) and "out of memory" in words
    )
