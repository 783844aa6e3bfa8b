"""Shared libraries that are unloaded when nothing of them is used any more.

Python's `ctypes` never unloads one, so a process that compiles again and again would map more and more of
them. What is made of a library here holds the library; when the last such thing is gone, it is closed, by the
next one that is opened: code of it may be what drops the last reference, and must not vanish under itself.
Nor may it vanish while garbage is collected, which calls finalizers before it drops what it found: these, and
other threads that they let run, may open libraries, or make what was found reachable again.
Before it is closed, its function `polyfuse_unload` is called, if it has one: it gives back what threads hold.
"""

from __future__ import annotations

import ctypes
import stat
import struct
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from polyfuse.base.errors import KernelLoadError

# what is collected while the lock is held may be a library
_LOCK = threading.RLock()
# of the file: where its tables of segments and of sections begin, and the size and number of their rows
_ELF = struct.Struct("<32xQQ6xHHHH2x")
_SEGMENT = struct.Struct("<8xQ16xQ16x")
_OPENED: Counter[int] = Counter()
"""How often each handle is in use: a file that is opened twice has one."""


class _Unused(NamedTuple):
    """A library whose object is gone, or found to be garbage, and what everything holds that needs it."""

    handle: int
    hold: object


_UNUSED: list[list[_Unused]] = [[], []]
"""To be closed: those that nothing held when the last library was opened, and the others."""


class SharedLibrary:
    """One library, open as long as this object lives.

    Attributes:
        hold: what objects of C hold that need the library and are dropped after this object: it stays open as
            long as somebody holds this.

    Raises:
        KernelLoadError: it cannot be loaded.
    """

    def __init__(self, path: Path | str, what: str = "library") -> None:
        _close_unused()
        self.path = str(path)
        self._what = what
        try:
            _check_whole(Path(path))
            self._loaded = ctypes.PyDLL(self.path)
        except OSError as error:
            raise self._unusable(error) from error
        with _LOCK:
            _OPENED[self._loaded._handle] += 1
        self.hold = object()
        # when the process ends, other threads may still be in it
        weakref.finalize(self, _unused, self._loaded._handle, self.hold).atexit = False

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


def _check_whole(path: Path) -> None:
    """Raise `OSError` for an ELF file that ends before its segments and its table of sections do: the dynamic
    loader maps what is missing, and the process ends by SIGBUS when that is read. A linker writes the table
    last. What is no ELF file for this kind of machine is left to the loader.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        return
    with path.open("rb") as file:
        head = file.read(_ELF.size)
        if len(head) < _ELF.size or head[:6] != b"\x7fELF\x02\x01":  # 64 bits, the lowest byte first
            return
        segments_at, sections_at, size, count, section_size, sections = _ELF.unpack(head)
        file.seek(segments_at)
        rows = file.read(size * count)
    ends = [sections_at + section_size * sections, segments_at + size * count]
    if size == _SEGMENT.size and len(rows) == size * count:
        ends += [offset + length for offset, length in _SEGMENT.iter_unpack(rows)]
    if max(ends) > found.st_size:
        raise OSError(f"it has {found.st_size} of {max(ends)} bytes")


def _unused(handle: int, hold: object) -> None:
    with _LOCK:
        _UNUSED[1].append(_Unused(handle, hold))


def _references(unused: _Unused) -> int:
    return sys.getrefcount(unused.hold)


_ALONE = _references(_Unused(0, object()))
"""The count where nothing else refers to it."""


def _close_unused() -> None:
    with _LOCK:
        closing, recent = _UNUSED
        held = [unused for unused in recent if _references(unused) > _ALONE]
        _UNUSED[0], _UNUSED[1] = [unused for unused in recent if _references(unused) <= _ALONE], held
    if closing:
        process = ctypes.CDLL(None)
        close, find = process.dlclose, process.dlsym
        close.argtypes, find.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_char_p]
        find.restype = ctypes.c_void_p
        for handle, _ in closing:
            with _LOCK:
                _OPENED[handle] -= 1
                if not _OPENED[handle]:
                    del _OPENED[handle]
                    give_back = find(handle, b"polyfuse_unload")
                    if give_back:
                        ctypes.CFUNCTYPE(None)(give_back)()
            close(handle)
