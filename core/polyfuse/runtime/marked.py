"""Kernels by their names in torch's profiler, while it records. Launchers of other devices than the CPU mark
each launch themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from polyfuse.runtime.launching import profiler_flag
from polyfuse.runtime.native import record_function


class _Marked:
    """A kernel whose launches are marked."""

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self.name = name
        self.kernel = kernel

    def __call__(self, *operands: Any) -> Any:
        with record_function(self.name):
            return self.kernel(*operands)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


class Marking:
    """Marks the kernels of a program while the profiler records.

    Args:
        namespace: of the program, where its kernels are globals.
        names: of kernels.
    """

    def __init__(self, namespace: dict[str, Any], names: Collection[str]) -> None:
        self._namespace = namespace
        self._names = names
        self._flags, self._flag = profiler_flag() or ({"": False}, "")
        self._marked = False

    def follow(self) -> None:
        """Be called before each call of the program, and where kernels were put in place."""
        wanted: bool = self._flags[self._flag]
        if not wanted and not self._marked:
            return
        self._marked = wanted
        for name in self._names:
            kernel = self._namespace[name]
            if isinstance(kernel, _Marked):
                if not wanted:
                    self._namespace[name] = kernel.kernel
            elif wanted and callable(kernel):  # also one that has replaced another since
                self._namespace[name] = _Marked(name, kernel)
