"""Packaged kernels to callables, without Triton."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from polyfuse.base.settings import Settings
from polyfuse.plugin import Launchable
from polyfuse_triton.launch.launcher import LauncherSource

LAUNCHER = "launcher.so"
"""The native launcher in a packaged folder, where the machine that made the package had one."""

_LOCK = threading.Lock()
_SHARED: list[LauncherSource] = []


def load_packaged(folder: Path, facts: Mapping[str, str]) -> Mapping[str, Launchable]:
    """The kernels of a package, ready on the current device; the launcher says where it is another one."""
    brought = folder / LAUNCHER
    return _launcher(brought if brought.exists() else None).load(folder)


def _launcher(library: Path | None) -> LauncherSource:
    """One for the whole process: the first package's serves all."""
    with _LOCK:
        if not _SHARED:
            _SHARED.append(LauncherSource(Settings.resolve(None, None), library))
        return _SHARED[0]
