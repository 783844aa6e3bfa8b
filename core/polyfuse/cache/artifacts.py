"""What lies in a cache folder: its artifacts by kind, when each was last used, and how one is removed.

An artifact is what is found, or missing, as a whole: a unit of kernels, the compiled graphs under one key, a
file of timings. It can be removed while other processes work in the folder: its name goes away at once, so
that nobody sees half of it, and whoever misses it makes it again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polyfuse.base.digest import DIGEST_LENGTH
from polyfuse.base.files import remove_folder
from polyfuse.cache.records import read_record

CONTENTS = "contents.json"
"""Lists the files of a unit with their digests, and its kernels. Written last; its time is the last use."""

KINDS: Final = {
    "kernels": "*/*",
    "compiled": "*",
    "captures": "*",
    "timings": "*/*",
    "samples": "*/*",
    "checked": "*/*",
    "barred": "*",
}
"""Folders within a cache folder, each with the pattern of its artifacts' paths."""

# A time of use is brought up to date if it is older than this, in seconds.
_FRESH: Final = 60.0


@dataclass(frozen=True)
class Artifact:
    """One artifact.

    Attributes:
        kind: one of `KINDS`.
        path: its file or folder.
        size: bytes of its files.
        used: when a process last found it, in seconds since the epoch.
    """

    kind: str
    path: Path
    size: int
    used: float

    def remove(self) -> None:
        """Remove it, and what points to it."""
        if self.kind == "kernels":
            for key in kernels_in(read_record(self.path / CONTENTS)):
                (self.path.parent.parent / key[:2] / f"{key}.json").unlink(missing_ok=True)
        if self.path.is_dir():
            remove_folder(self.path)
        else:
            self.path.unlink(missing_ok=True)


def artifacts(root: Path, kind: str) -> Iterator[Artifact]:
    """The artifacts of one kind. Those that other processes remove meanwhile are left out."""
    for path in sorted((root / kind).glob(KINDS[kind])):
        if path.name.startswith("."):
            continue
        with contextlib.suppress(OSError):
            if kind == "kernels" and not path.is_dir():
                continue  # points to a unit
            used = path / CONTENTS if kind == "kernels" and (path / CONTENTS).is_file() else path
            yield Artifact(kind, path, _size(path), used.stat().st_mtime)


def mark_used(path: Path) -> None:
    """Note that the file or folder whose time says when an artifact was used was used now."""
    with contextlib.suppress(OSError):
        if abs(time.time() - path.stat().st_mtime) > _FRESH:
            os.utime(path)


def kernels_in(contents: Mapping[str, object]) -> Mapping[str, str]:
    """The kernels of a unit with their source keys, from its contents; none for units that do not say."""
    found = contents.get("kernels")
    if not isinstance(found, dict):
        return {}
    return {key: source for key, source in found.items() if is_address(key) and isinstance(source, str)}


def is_address(value: object) -> bool:
    """Whether something is spelled as addresses are, so that it can be part of a path."""
    return isinstance(value, str) and len(value) == DIGEST_LENGTH and value.isalnum()


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(
        Path(directory, name).stat().st_size for directory, _, names in os.walk(path) for name in names
    )
