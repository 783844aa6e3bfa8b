"""Which code is installed: what tells one state of a folder of sources from another."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from polyfuse.base.digest import digest

__all__ = ["code_stamp"]


@cache
def code_stamp(package: str) -> str:
    """Return the address of an importable package's files: names, sizes, and times of change, by which Python
    too tells whether a file is the one that it compiled. Empty where there are no files. Imports nothing.
    """
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return ""
    if spec is None:
        return ""
    folders = spec.submodule_search_locations
    if folders is None:
        return _stamp([Path(spec.origin)]) if spec.has_location and spec.origin else ""
    found = [Path(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names]
    return _stamp(sorted(path for path in found if path.parent.name != "__pycache__"))


def _stamp(paths: list[Path]) -> str:
    parts: list[str] = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        parts += [str(path), str(status.st_size), str(status.st_mtime_ns)]
    return digest(*parts) if parts else ""
