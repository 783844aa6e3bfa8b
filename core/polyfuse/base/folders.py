"""Folders of the caches and of this process."""

from __future__ import annotations

import secrets
import tempfile
from functools import cache
from pathlib import Path

import platformdirs

from polyfuse.base.errors import CacheError
from polyfuse.base.log import warn_once
from polyfuse.base.settings import Settings

__all__ = ["cache_root", "process_folder", "writable_root"]


def cache_root(settings: Settings) -> Path:
    """Return the root folder of the caches that the settings ask for, whether or not it exists."""
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("polyfuse", appauthor=False))


def writable_root(settings: Settings) -> Path:
    """Return a root folder that can be written, made if needed.

    Where the one asked for cannot be, or `cache` is off, it is a folder of this process alone that goes away
    with it, and the former is warned about once.
    """
    if not settings.cache:
        return process_folder()
    root = cache_root(settings)
    problem = _try(root)
    if not problem:
        return root
    warn_once(
        "cache",
        f"the cache folder {root} cannot be written ({problem}); this process uses a temporary one, name "
        f"another with the option `cache_dir`",
    )
    return process_folder()


def _try(root: Path) -> str:
    """Return why a folder cannot be written, or an empty text. Permissions tell little on network file
    systems and for the superuser, so a file is really written.
    """
    probe = root / f".probe.{secrets.token_hex(6)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="polyfuse-", ignore_cleanup_errors=True)
    except OSError as error:
        raise CacheError(
            f"no temporary folder can be made ({error})", "set TMPDIR or the option `cache_dir`"
        ) from error


def process_folder() -> Path:
    """Return the folder of this process alone, removed when it ends."""
    return Path(_temporary().name)
