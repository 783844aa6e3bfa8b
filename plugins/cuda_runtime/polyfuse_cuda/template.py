"""Kernels whose frame is written by hand: how they are called as part of a program.

They are calls in a graph, not loops that the scheduler knows, so they are loaded when they are first called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

from polyfuse.plugin import Expected, Launchable

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
        # read once, for steps of flexible attention are over before the host has launched them
        given: list[Any] = []
        together = 0
        for argument in arguments:
            if not isinstance(argument, int):
                argument = argument.data_ptr()
                together |= argument
            given.append(argument)
        aligned = together % ALIGNMENT == 0
        index = arguments[0].get_device()
        if not aligned or index < 0:
            # what moves operands, and what runs on the host, takes tensors
            given = list(arguments)
        if index < 0 or index == _current_device():
            (self._ready.get(aligned) or self._loaded(aligned))(*given)
            return
        with _device(arguments[0].device):
            (self._ready.get(aligned) or self._loaded(aligned))(*given)

    def _loaded(self, aligned: bool) -> Launchable:
        with _LOCK:
            if aligned not in self._ready:
                self._ready[aligned] = self._load(aligned)
            return self._ready[aligned]


class ComparedTemplate(TemplateKernel):
    """A `TemplateKernel` whose launches can be compared with what they have to give: a
    `polyfuse.plugin.WrittenKernel`.

    Args:
        name, load: as of a `TemplateKernel`.
        plugin: whose kernel it is.
        key: gives a digest of its text, and of the compiler and device that it is built with and for.
        expected: what a call with some operands has to give.
        recipe: a function and its arguments that make an equal call in another process; None: nothing does.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[bool], Launchable],
        plugin: str,
        key: Callable[[], str],
        expected: Callable[..., Expected],
        recipe: tuple[Callable[..., ComparedTemplate], tuple[Any, ...]] | None = None,
    ) -> None:
        super().__init__(name, load)
        self._recipe = recipe
        self.plugin = plugin
        self._key = key
        self._expected = expected

    @property
    def storable(self) -> bool:
        """Whether a program with it can be stored."""
        return self._recipe is not None

    def __reduce__(self) -> tuple[Callable[..., ComparedTemplate], tuple[Any, ...]]:
        if self._recipe is None:
            raise TypeError(
                f"the kernel {self.__name__} is of this process alone; compile it in the other one"
            )
        return self._recipe

    @cached_property
    def key(self) -> str:
        """A digest of its text, and of what it is built with and for."""
        return self._key()

    def expected(self, *operands: Any) -> Expected | None:
        """What a call has to give."""
        return self._expected(*operands)

    def by_library(self, *operands: Any) -> None:
        """Put what is expected into the results."""
        for at, (values, _) in self._expected(*operands).results.items():
            operands[at].copy_(values)


@cache
def _torch_cuda() -> Any:
    import torch

    return torch.cuda


def _current_device() -> int:
    return int(_torch_cuda().current_device())


def _device(device: Any) -> Any:
    return _torch_cuda().device(device)
