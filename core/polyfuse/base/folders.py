"""Folders of the caches and of this process."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import platformdirs

from polyfuse.base.errors import CacheError
from polyfuse.base.log import warn_once
from polyfuse.base.process import ForkedLock
from polyfuse.base.settings import Settings


def cache_root(settings: Settings) -> Path:
    """Return the root folder of the caches that the settings ask for, whether or not it exists."""
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("polyfuse", appauthor=False))


def writable_root(settings: Settings) -> Path:
    """Return a root folder that can be written, made if needed.

    Where the one asked for cannot be, must not be used, or `cache` is off, it is a folder of this process
    alone that goes away with it; the first two are warned about once.
    """
    if not settings.cache:
        return process_folder()
    root = cache_root(settings)
    refused = distrusted(root)
    if refused:
        warn_once(
            "cache",
            f"the cache folder {root} is not used, for {refused}, or name one of your own with the option"
            " `cache_dir`; this process uses a temporary one",
        )
        return process_folder()
    problem = _try(root)
    if not problem:
        return root
    warn_once(
        "cache",
        f"the cache folder {root} cannot be written ({problem}); this process reads what is there and uses a"
        " temporary one, name another with the option `cache_dir`",
    )
    return process_folder()


def readable_root(settings: Settings) -> Path | None:
    """Return the root folder that the settings ask for where it can be read and used, but not written."""
    root = cache_root(settings)
    if not settings.cache or not root.is_dir() or distrusted(root) or not _try(root):
        return None
    return root


def distrusted(root: Path) -> str:
    """Why what lies in a folder must not be executed, and what to do about that; empty where it may be. Those
    who may write there could have this process run anything.
    """
    try:
        facts = root.stat()
    except OSError:
        return ""
    if not hasattr(os, "geteuid"):
        return ""
    if facts.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user (number {facts.st_uid}): chown it"
    if facts.st_mode & stat.S_IWOTH:
        return f"everybody may write to it: chmod o-w {root}"
    return ""


def _try(root: Path) -> str:
    """Return why a folder cannot be written, or an empty text. Permissions tell little on network file
    systems and for the superuser, so a file is really written.
    """
    probe = root / f".probe.{secrets.token_hex(6)}"
    try:
        # for nobody else, whatever the umask: what others could change must not be executed
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


Made = TypeVar("Made")

_MADE: dict[int, Path] = {}
_LOCK = ForkedLock()


def process_folder() -> Path:
    """Return the folder of this process alone, removed when it ends. A forked child makes one of its own, and
    leaves its parent's alone.

    Raises:
        CacheError: no temporary folder can be made.
    """
    with _LOCK:
        mine = os.getpid()
        if mine not in _MADE:
            try:
                _MADE[mine] = Path(tempfile.mkdtemp(prefix="polyfuse-"))
            except OSError as error:
                raise CacheError(
                    f"no temporary folder can be made ({error})", "set TMPDIR or the option `cache_dir`"
                ) from error
            atexit.register(_remove, mine)
        return _MADE[mine]


def made_in_cache(root: Path, make: Callable[[Path], Made]) -> Made:
    """What `make` makes in a cache's folder, or in this process's own where that one cannot be written."""
    try:
        return make(root)
    except OSError:
        return make(process_folder())


def _remove(owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(_MADE[owner], ignore_errors=True)
