"""The limit of the cache folder: the least recently used artifacts are removed first.

Only kernels and compiled graphs are counted: timings are small, and cost more than anything to make again.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from polyfuse.base.log import get_logger
from polyfuse.cache.artifacts import artifacts

COUNTED: Final = ("kernels", "compiled", "captures")
"""The kinds of artifacts whose bytes the limit is about."""

# What was used within so many seconds is never removed: a process may have found it and be about to read it.
_SPARED: Final = 300.0

# Processes that add something look at most so often, unless one has itself added a tenth of the limit.
_INTERVAL: Final = 3600.0
_ADDED: Final = 0.1

# As much is left of the limit, so that the next addition does not meet it again.
_LEFT: Final = 0.9

_STAMP: Final = "trimmed"

_log = get_logger("cache")


@dataclass(frozen=True)
class Trimmed:
    """What became of a folder.

    Attributes:
        removed, freed: artifacts that went, and their bytes.
        left: bytes that remain.
    """

    removed: int
    freed: int
    left: int


_NEW: dict[Path, int] = {}
"""Bytes that this process added to a folder since it was last trimmed."""


def trim_if_due(root: Path, limit: int, added: int = 0) -> None:
    """Trim, unless there is no limit, or some process did so within the last hour and this one has added
    little since. Nothing is raised.

    Args:
        added: bytes that were just added.
    """
    if not limit:
        return
    stamp = root / _STAMP
    _NEW[root] = _NEW.get(root, 0) + added
    with contextlib.suppress(OSError):
        # a time in the future was written by another clock
        if abs(time.time() - stamp.stat().st_mtime) < _INTERVAL and _NEW[root] < _ADDED * limit:
            return
    _NEW[root] = 0
    try:
        root.mkdir(parents=True, exist_ok=True)
        stamp.touch()  # first, so that of processes that come at once most turn away here
        trim(root, limit)
    except OSError as error:
        _log.info("the cache folder %s cannot be trimmed: %s", root, error)


def trim(root: Path, limit: int, *, spared: float = _SPARED) -> Trimmed:
    """Remove what was not used for longest, until a tenth of the limit is free again.

    Args:
        limit: bytes of kernels and compiled graphs; what killed processes left goes in any case.
        spared: what was used within so many seconds stays, whatever its size.
    """
    (root / "locks").mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(str(root / "locks" / "trim.lock"), timeout=0):
            sweep(root)
            return _trim(root, limit, time.time() - spared)
    except Timeout:  # another process is at it
        return Trimmed(0, 0, sum(item.size for kind in COUNTED for item in artifacts(root, kind)))


def _trim(root: Path, limit: int, spared: float) -> Trimmed:
    # what was used in the future, by another clock, goes first: nobody knows when it was
    found = sorted(
        (item for kind in COUNTED for item in artifacts(root, kind)),
        key=lambda item: item.used if item.used <= time.time() + 1.0 else 0.0,
    )
    left, now = sum(item.size for item in found), time.time() + 1.0
    if left <= limit:
        return Trimmed(0, 0, left)
    removed = freed = 0
    for item in found:
        if left <= limit * _LEFT:
            break
        if spared < item.used <= now:
            break
        item.remove()
        left -= item.size
        freed += item.size
        removed += 1
    _log.info("%d artifacts (%d bytes) were removed from %s, %d bytes remain", removed, freed, root, left)
    return Trimmed(removed, freed, left)


def sweep(root: Path, older_than: float = 24 * 3600.0) -> int:
    """Remove what killed processes left: temporary files and folders older than a number of seconds, and
    locks that nobody took for so long.
    """
    limit = time.time() - older_than
    patterns = [
        ("kernels", "*/.*.tmp"),
        ("compiled", ".*.tmp"),
        ("compiled", "*/.*.tmp"),
        ("captures", "*/.*.tmp"),
        ("locks", "*.lock"),
    ]
    leftovers = [path for kind, pattern in patterns for path in sorted((root / kind).glob(pattern))]
    return sum(_remove_old(path, limit) for path in leftovers)


def _remove_old(path: Path, limit: float) -> bool:
    remove: Callable[[Path], object] = shutil.rmtree if path.is_dir() else Path.unlink
    with contextlib.suppress(OSError):
        changed = path.stat().st_mtime
        if changed < limit or changed > time.time() + _INTERVAL * 24:
            remove(path)
            return True
    return False
