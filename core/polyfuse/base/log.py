"""Logging: the standard library's, one logger an area, quiet unless asked."""

from __future__ import annotations

import logging
import threading

from polyfuse.base.text import printable

__all__ = ["configure", "get_logger", "reset_warned", "warn_once"]

_ROOT = "polyfuse"
_warned: dict[tuple[str, str], None] = {}
_lock = threading.Lock()


def get_logger(area: str) -> logging.Logger:
    """Return the logger of one area, for example `get_logger("schedule")` → `polyfuse.schedule`."""
    name = area.removeprefix(_ROOT).lstrip(".")
    return logging.getLogger(f"{_ROOT}.{name}" if name else _ROOT)


def configure(spec: str) -> None:
    """Set levels from text such as `"info"` or `"schedule=debug,cache=info"`, and show them on stderr.

    An unknown level raises `ValueError`, which names it.
    """
    for item in filter(None, (part.strip() for part in spec.split(","))):
        area, _, level = item.rpartition("=")
        get_logger(area).setLevel(level.strip().upper())
    root = logging.getLogger(_ROOT)
    if spec and not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False


def warn_once(area: str, message: str, *, key: str = "") -> bool:
    """Log a warning the first time its `key` (the message itself by default) is seen in this process.

    Returns whether it was logged.
    """
    mark = (area, key or message)
    with _lock:
        if mark in _warned:
            return False
        _warned[mark] = None
    get_logger(area).warning("%s", printable(message))
    return True


def reset_warned() -> None:
    """Forget which warnings were given; for tests and for `torch.compiler.reset()`."""
    with _lock:
        _warned.clear()
