"""Threads that still compile when the interpreter ends.

A daemon thread ends where it next asks for Python's lock once the interpreter is being taken apart. Under the
tracer there are frames of C++ that cannot be left so, and the process ends by a signal; and what the tracer
asks of torch's operators has been taken apart before.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

_WAIT: Final = 20.0
"""Seconds that the end waits for such threads; one that waits for a compiler leaves when that has ended."""

_AGAIN: Final = 0.2
"""Seconds after which a thread that has not left is interrupted again: it may have caught the exception."""

_threads: Counter[int] = Counter()
_changed = threading.Condition()


@contextmanager
def left_at_the_end() -> Iterator[None]:
    """This thread compiles within. If the interpreter ends meanwhile, `SystemExit` is raised here, and the
    end waits for it."""
    if threading.current_thread() is threading.main_thread():
        yield
        return
    _watch_end()
    this = threading.get_ident()
    with _changed:
        _threads[this] += 1
    try:
        yield
    finally:
        with _changed:
            _threads[this] -= 1
            if not _threads[this]:
                del _threads[this]
            _changed.notify_all()


@cache
def _watch_end() -> None:
    atexit.register(_end)
    os.register_at_fork(after_in_child=_begin_anew)


def _end() -> None:
    until = time.monotonic() + _WAIT
    with _changed:
        while _threads and time.monotonic() < until:
            for thread in _threads:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread), ctypes.py_object(SystemExit)
                )
            _changed.wait(_AGAIN)


def _begin_anew() -> None:
    """A forked process has the thread that forked it alone, which is its main thread."""
    global _changed
    _changed = threading.Condition()
    _threads.clear()
