"""Logging: the standard library's, one logger an area, quiet unless asked."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.text import join_words, nearest, printable

_ROOT = "polyfuse"

AREAS: Final = (
    *("aot", "autotune", "cache", "checking", "compiler", "distributed", "frontend", "lowering", "plugin"),
    *("ranks", "runtime", "schedule", "settings", "workers"),
)
"""The areas of the core that log. Plugins log under their own names."""

_HINT = "Polyfuse gives each warning once; POLYFUSE_LOG=error silences them."

_unannounced: list[str] = []
_warned: dict[tuple[str, str], None] = {}
_lock = threading.Lock()


def get_logger(area: str) -> logging.Logger:
    """Return the logger of one area, for example `get_logger("schedule")` → `polyfuse.schedule`."""
    name = area.removeprefix(_ROOT).lstrip(".")
    return logging.getLogger(f"{_ROOT}.{name}" if name else _ROOT)


def configure(spec: str, plugins: Sequence[str] = ()) -> None:
    """Set levels from text such as `"info"` or `"schedule=debug,cache=info"`, and show them on stderr.

    Raises `InvalidOptionError` for an unknown level, and for an area that is neither one of `AREAS` nor a
    plugin.
    """
    known = (*AREAS, *plugins)
    for item in filter(None, (part.strip() for part in spec.split(","))):
        area, _, level = item.rpartition("=")
        area, level = area.strip().removeprefix(f"{_ROOT}."), level.strip().upper()
        if level not in logging.getLevelNamesMapping():
            raise InvalidOptionError(
                f"POLYFUSE_LOG asks for level {level.lower()!r}, which does not exist",
                "use debug, info, warning or error, as in `schedule=debug`",
            )
        if area.partition(".")[0] not in ("", _ROOT, *known):
            close = nearest(area, known) or known
            raise InvalidOptionError(
                f"POLYFUSE_LOG names {area!r}, which logs nothing", f"use {join_words(close, 'or')}"
            )
        get_logger(area).setLevel(level)
    root = logging.getLogger(_ROOT)
    if spec and not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        root.addHandler(handler)
        root.propagate = False


@contextmanager
def unannounced(beginning: str) -> Iterator[None]:
    """Give no warnings that begin so: the caller shows what they say."""
    _unannounced.append(beginning)
    try:
        yield
    finally:
        _unannounced.remove(beginning)


def warn_once(area: str, message: str, *, key: str = "") -> bool:
    """Log a warning the first time its `key` (the message itself by default) is seen in this process.

    Returns whether it was logged.
    """
    if any(message.startswith(beginning) for beginning in _unannounced):
        return False
    mark = (area, key or message)
    with _lock:
        if mark in _warned:
            return False
        _warned[mark] = None
        first = len(_warned) == 1
    logger = get_logger(area)
    logger.warning("%s", printable(message))
    if first and logger.isEnabledFor(logging.WARNING) and not logger.hasHandlers() and sys.stderr is not None:
        # nobody has set up logging, so that the message went to standard error as it is
        print(_HINT, file=sys.stderr)
    return True


def reset_warned() -> None:
    """Forget which warnings were given; for tests and for `torch.compiler.reset()`."""
    with _lock:
        _warned.clear()
