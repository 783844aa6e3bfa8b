"""What a unit of kernels holds, and whether its files are those that were built.

A record in the folder lists the files with their sizes and SHA-256, and the kernels. Before anything of a
unit is loaded, a process reads its files once and compares them; it does so again only if the time, size or
location on disk of a file changed since.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from polyfuse.base.log import warn_once
from polyfuse.cache.artifacts import CONTENTS, kernels_in
from polyfuse.cache.records import read_record, write_record

# Units whose check is remembered; beyond it, all are forgotten, and checked again when they are needed.
_REMEMBERED: Final = 8192

# How often a record that cannot be read is read again, and seconds before each time.
_LOOKS: Final = 3
_PAUSE: Final = 0.01


@dataclass(frozen=True)
class _Checked:
    """A unit that was found as it was built.

    Attributes:
        stamps: of the record and all files.
        kernels: that it holds.
    """

    names: tuple[str, ...]
    stamps: tuple[tuple[int, int, int], ...]
    kernels: Mapping[str, str]


_CHECKED: dict[Path, _Checked] = {}
_LOCK = threading.Lock()


def seal_unit(folder: Path, kernels: Mapping[str, str]) -> None:
    """Write the record of a folder that was filled; it is the last file to be written."""
    files = {name: [size, sha] for name, (size, sha) in file_digests(folder).items()}
    write_record(folder / CONTENTS, {"files": files, "kernels": kernels})


def file_digests(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file in a folder, by its path there."""
    found: dict[str, tuple[int, str]] = {}
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(directory, name)
            data = path.read_bytes()
            found[path.relative_to(folder).as_posix()] = len(data), hashlib.sha256(data).hexdigest()
    return found


def unit_kernels(folder: Path) -> Mapping[str, str] | None:
    """The kernels of a unit by their keys; None where the unit is missing, incomplete or damaged. Damage is
    reported, once.
    """
    with _LOCK:
        known = _CHECKED.get(folder)
    try:
        if known is not None and _stamps(folder, known.names) == known.stamps:
            return known.kernels
        checked = _check(folder)
    except (OSError, ValueError):
        return None
    if checked is None:
        return None
    with _LOCK:
        if len(_CHECKED) >= _REMEMBERED:
            _CHECKED.clear()
        _CHECKED[folder] = checked
    return checked.kernels


def unit_size(folder: Path) -> int:
    """Bytes of the files of a unit; 0 where it is gone."""
    rows = read_record(folder / CONTENTS).get("files")
    return sum(row[0] for row in rows.values()) if isinstance(rows, dict) else 0


def _check(folder: Path) -> _Checked | None:
    record = read_record(folder / CONTENTS)
    for _ in range(_LOOKS):
        if record or not (folder / CONTENTS).exists():
            break
        # another process published it meanwhile; on some file systems a name is seen before what it names
        time.sleep(_PAUSE)
        record = read_record(folder / CONTENTS)
    files = record.get("files")
    if not isinstance(files, dict):
        if (folder / CONTENTS).exists():
            _report(folder, CONTENTS)
        return None
    names = (CONTENTS, *files)
    stamps = _stamps(folder, names)  # before reading: what changes meanwhile is read again
    for name, row in files.items():
        data = (folder / name).read_bytes()
        if row != [len(data), hashlib.sha256(data).hexdigest()]:
            _report(folder, name)
            return None
    return _Checked(names, stamps, kernels_in(record))


def _stamps(folder: Path, names: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    found = (os.stat(folder / name) for name in names)
    # the time of the record is that of the last use
    return tuple(
        (s.st_ino, s.st_size, s.st_mtime_ns if name != CONTENTS else 0)
        for name, s in zip(names, found, strict=True)
    )


def _report(folder: Path, name: str) -> None:
    warn_once(
        "cache",
        f"{folder / name} is not what was built, so it is built again; if that is seen more often, check the"
        " disk, or name another folder with the option `cache_dir`",
        key=f"damaged {folder}",
    )
