"""Shared libraries that are unloaded when nothing of them is used any more.

Python's `ctypes` never unloads one, so a process that compiles again and again would map more and more of
them. What is made of a library here holds the library; when the last such thing is gone, it is closed, by the
next one that is opened: code of it may be what drops the last reference, and must not vanish under itself.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from pathlib import Path
from typing import Any

from polyfuse.base.errors import KernelLoadError

__all__ = ["SharedLibrary"]

# what is collected while the lock is held may be a library
_LOCK = threading.RLock()
_UNUSED: list[list[int]] = [[], []]
"""Handles to be closed: those that became unused before the last library was opened, and since then."""


class SharedLibrary:
    """One library, open as long as this object lives.

    Raises:
        KernelLoadError: it cannot be loaded.
    """

    def __init__(self, path: Path | str, what: str = "library") -> None:
        _close_unused()
        self.path = str(path)
        self._what = what
        try:
            self._loaded = ctypes.PyDLL(self.path)
        except OSError as error:
            raise self._unusable(error) from error
        # when the process ends, other threads may still be in it
        weakref.finalize(self, _unused, self._loaded._handle).atexit = False

    def function(self, symbol: str) -> Any:
        """A function of it, called with the lock of the interpreter held. It does not hold the library."""
        try:
            return getattr(self._loaded, symbol)
        except AttributeError as error:
            raise self._unusable(error) from error

    def address(self, symbol: str) -> int:
        """The address of a function."""
        found = ctypes.cast(self.function(symbol), ctypes.c_void_p).value
        assert found is not None
        return found

    def _unusable(self, error: Exception) -> KernelLoadError:
        return KernelLoadError(
            f"the {self._what} {self.path} cannot be loaded ({error})",
            "delete it from the cache and compile again",
        )


def _unused(handle: int) -> None:
    with _LOCK:
        _UNUSED[1].append(handle)


def _close_unused() -> None:
    with _LOCK:
        closing, _UNUSED[0], _UNUSED[1] = _UNUSED[0], _UNUSED[1], []
    if closing:
        close = ctypes.CDLL(None).dlclose
        close.argtypes = [ctypes.c_void_p]
        for handle in closing:
            close(handle)
