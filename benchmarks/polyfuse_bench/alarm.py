"""A limit to how long something may take, enforced by the process's alarm clock."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def limited(seconds: float, late: Callable[[], Any]) -> Iterator[None]:
    """Call `late`, which raises, in what takes longer; 0 is no limit. For the main thread alone."""
    if not seconds:
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: late())
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
