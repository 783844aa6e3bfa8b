"""Several rows at once: each process prepares its row beside the others, then all are timed one by one.

Preparing is compiling, most of which leaves the device alone; a cold compile takes far longer than timing.
No row is timed before every one is prepared, so that nothing else runs while one is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

__all__ = ["run_together", "turn"]

VARIABLE = "POLYFUSE_BENCH_TURNS"
"""Names, for a process that measures a row, the folder in which it says that it is prepared."""

_POLL_SECONDS = 0.05
_GO = "go"
T = TypeVar("T")


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait until every row is prepared and no other one is being timed. At once where rows run alone."""
    if VARIABLE not in os.environ:
        yield
        return
    folder = Path(os.environ[VARIABLE])
    (folder / f"ready-{uuid.uuid4().hex}").touch()
    idle = threading.Event()
    while not (folder / _GO).exists():
        idle.wait(_POLL_SECONDS)
    with FileLock(folder / "timing"):
        yield


def run_together(rows: Sequence[Callable[[], T]]) -> Iterator[T]:
    """The answers of `rows`, in order, each of which runs a process that calls `turn`."""
    with tempfile.TemporaryDirectory(prefix="polyfuse-turns-") as name:
        folder = Path(name)
        over = threading.Event()
        os.environ[VARIABLE] = name
        starter = threading.Thread(target=_start, args=(folder, len(rows), over), daemon=True)
        starter.start()
        try:
            with ThreadPoolExecutor(len(rows)) as threads:
                yield from threads.map(lambda row: _noted(row, folder), rows)
        finally:
            over.set()
            starter.join()
            del os.environ[VARIABLE]


def _noted(row: Callable[[], T], folder: Path) -> T:
    try:
        return row()
    finally:
        (folder / f"ended-{uuid.uuid4().hex}").touch()


def _start(folder: Path, count: int, over: threading.Event) -> None:
    """Let timing begin when each process is prepared or has ended without being."""
    while not over.wait(_POLL_SECONDS):
        if sum(1 for path in folder.iterdir() if path.name.startswith(("ready-", "ended-"))) >= count:
            (folder / _GO).touch()
            return
