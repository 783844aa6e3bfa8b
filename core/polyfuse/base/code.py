"""Which code is installed: its version, and what tells one state of a folder of sources from another."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from polyfuse.base.digest import DIGEST_LENGTH, digest
from polyfuse.base.errors import CacheError
from polyfuse.base.files import atomic_write, locked, read_text

# Of the modules that compile this is one of the first to be imported.
_BEGUN = time.time()


# Seconds after which another process's reading is not waited for.
_PATIENCE: Final = 30.0


def begun() -> float:
    """Return when this process began to import modules, in seconds since the epoch: what changed later may
    not be what it runs."""
    return _BEGUN


@cache
def code_stamp(package: str) -> str:
    """Return the address of an importable package's files: names, sizes, and times of change, by which Python
    too tells whether a file is the one that it compiled. Empty where there are no files, or where one changed
    since this process began, so that nobody knows which state of it is in use. Imports nothing.
    """
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    folders = spec.submodule_search_locations
    try:
        if folders is not None:
            found = [line for folder in folders for line in _files(folder)]
        else:
            found = [_line(spec.origin, os.stat(spec.origin))] if spec.has_location and spec.origin else []
    except OSError:  # changed while it was read
        return ""
    if not found or any(changed > _BEGUN for _, changed in found):
        return ""
    return digest("\n".join(sorted(line for line, _ in found)))


@cache
def code_digest(package: str, memory: Path) -> str:
    """Return the address of what an importable package's files hold, the same wherever they lie; empty where
    `code_stamp` is.

    Args:
        memory: a folder where it is remembered by the stamp, so that a later process need not read them.
    """
    stamp = code_stamp(package)
    if not stamp:
        return ""
    found = _remembered(memory / stamp)
    if found:
        return found
    # of processes that start at once, one reads the files
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(CacheError, OSError):
            stack.enter_context(locked(memory.parent / "locks" / f"{stamp}.lock", _PATIENCE))
        found = _remembered(memory / stamp)
        if found:
            return found
        try:
            found = _contents_digest(package, stamp)
        except OSError:  # gone since
            return ""
        with contextlib.suppress(OSError):
            atomic_write(memory / stamp, found)
        return found


def _remembered(path: Path) -> str:
    known = read_text(path)
    return known if known is not None and len(known) == DIGEST_LENGTH else ""


@cache
def _contents_digest(package: str, stamp: str) -> str:
    """What a package of that stamp holds: read once, for whichever folders remember it."""
    spec = find_spec(package)
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    origin = spec.origin if spec is not None else None
    parts = [part for folder in locations for part in _contents(folder)]
    if not locations and origin is not None:
        parts = [Path(origin).name.encode(), Path(origin).read_bytes()]
    return digest(*parts)


def _contents(folder: str) -> Iterator[bytes]:
    """Names and contents of all files, by name."""
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        inside = os.path.relpath(directory, folder).replace(os.sep, "/")
        for name in sorted(names):
            yield (name if inside == "." else f"{inside}/{name}").encode()
            with open(os.path.join(directory, name), "rb") as file:
                yield file.read()


def _files(folder: str) -> Iterator[tuple[str, float]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _files(entry.path)
            else:
                yield _line(entry.path, entry.stat())


def _line(path: str, status: os.stat_result) -> tuple[str, float]:
    return f"{path} {status.st_size} {status.st_mtime_ns}", status.st_mtime


@cache
def version() -> str:
    """Return the installed version, or `"0+source"` when the package is imported from a plain source tree."""
    try:
        return metadata.version("polyfuse")
    except metadata.PackageNotFoundError:
        return "0+source"
