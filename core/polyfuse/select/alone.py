"""Taking turns with other processes of this machine: of two that take times on one device, each would
measure the other.
"""

from __future__ import annotations

import contextlib
import getpass
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from filelock import FileLock, Timeout

from polyfuse.base.digest import digest
from polyfuse.base.log import get_logger

__all__ = ["alone_on"]

_log = get_logger("select")

_PATIENCE = 60.0
"""Seconds after which times are taken all the same."""


@contextlib.contextmanager
def alone_on(device: str, folder: Path | None = None, seconds: float = _PATIENCE) -> Iterator[None]:
    """Keep other processes, whatever cache they use, from taking times on a device meanwhile.

    Args:
        folder: where the processes meet; None: one of this user's that all his processes have in common.
        seconds: how long to wait for others at most.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = folder or Path(tempfile.gettempdir()) / f"polyfuse-{getpass.getuser()}"
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = FileLock(str(folder / f"{digest(_identity(device))[:16]}.lock"))
            stack.enter_context(lock.acquire(timeout=seconds))
        except (OSError, KeyError, Timeout) as error:
            _log.info("taking times on %s beside other processes: %s", device, error)
        yield


def _identity(device: str) -> str:
    """What a device is called by any process: indices depend on what a process sees."""
    if device.startswith("cpu"):
        return "cpu"
    properties = torch.get_device_module(device).get_device_properties(device)
    return str(getattr(properties, "uuid", properties))
