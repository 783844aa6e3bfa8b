"""Artifacts in one file, to take them to another folder: what bundles and remote stores hold.

A zip file whose members are named as in the cache folder, behind one that says which format the store has.
Names that are none of a cache folder are left out, and so are artifacts that are cut short. But kernels and
graphs are code: archives are to be had only from those whose code one would run.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol

from polyfuse.base.digest import stable_json
from polyfuse.base.errors import CacheError
from polyfuse.base.files import atomic_write
from polyfuse.base.version import version
from polyfuse.cache.artifacts import CONTENTS, KINDS, Artifact, kernels_in
from polyfuse.cache.keys import STORE_FORMAT, unit_key
from polyfuse.cache.records import parse_record
from polyfuse.cache.zip_reader import Limits, ZipReader, is_plain_name

__all__ = ["AddUnit", "Unpacked", "pack", "unpack", "zip_entry"]

_HEAD: Final = "polyfuse-cache.json"

# A whole cache folder may go into one archive.
_LIMITS: Final = Limits(members=1 << 20, directory=1 << 28)


class AddUnit(Protocol):
    """Adds kernels as one unit, which a function fills, unless it is there; such as `KernelStore.add`."""

    def __call__(self, kernels: Mapping[str, str], build: Callable[[Path], None], /) -> object: ...


@dataclass(frozen=True)
class Unpacked:
    """What became of the artifacts of an archive: added, there before, or damaged."""

    added: int = 0
    present: int = 0
    damaged: int = 0


def pack(root: Path, found: Iterable[Artifact], stream: IO[bytes]) -> int:
    """Write artifacts of a cache folder to a stream, and return how many. Those that are removed meanwhile,
    and units that do not say what is in them, are left out.
    """
    count = 0
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zip_entry(_HEAD), stable_json({"format": STORE_FORMAT, "polyfuse": version()}))
        for item in found:
            try:
                paths = sorted(path for path in item.path.rglob("*") if path.is_file()) or [item.path]
                files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
            except OSError:
                continue
            if item.kind == "kernels" and not kernels_in(_contents(files)):
                continue
            for name, content in files.items():
                archive.writestr(zip_entry(name), content)
            count += 1
    return count


def unpack(root: Path, stream: IO[bytes], add: AddUnit) -> Unpacked:
    """Add what an archive holds to a cache folder, where it is not there.

    Args:
        add: adds units of kernels.

    Raises:
        CacheError: it is no archive, or one for another version of the store.
    """
    try:
        archive = ZipReader(stream, _LIMITS)
        head = json.loads(archive.read(_HEAD))
        if not isinstance(head, dict) or head.get("format") != STORE_FORMAT:
            raise CacheError("the archive was written for another format of the cache", "write it anew")
        results = [
            _unpack_one(archive, root, kind, names, add) for (kind, _), names in _grouped(archive).items()
        ]
    except (ValueError, RecursionError) as error:
        raise CacheError(f"it is no archive of a cache, or damaged ({error})", "write it anew") from error
    return Unpacked(results.count("added"), results.count("present"), results.count("damaged"))


def _grouped(archive: ZipReader) -> Mapping[tuple[str, str], list[str]]:
    """The members of each artifact, by its kind and place; members that are none are left out."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in archive.members:
        parts = name.split("/")
        depth = 2 + KINDS.get(parts[0], "").count("/")
        if parts[0] in KINDS and len(parts) >= depth and is_plain_name(name):
            groups.setdefault((parts[0], "/".join(parts[:depth])), []).append(name)
    return groups


def _unpack_one(archive: ZipReader, root: Path, kind: str, names: list[str], add: AddUnit) -> str:
    try:
        files = {name: archive.read(name) for name in names}
        if kind == "kernels":
            return _unpack_unit(root, files, add)
        missing = [name for name in names if not (root / name).exists()]
        for name in missing:
            atomic_write(root / name, files[name])
        return "added" if missing else "present"
    except (ValueError, RecursionError):
        return "damaged"


def _unpack_unit(root: Path, files: Mapping[str, bytes], add: AddUnit) -> str:
    contents = _contents(files)
    kernels = kernels_in(contents)
    unit = PurePosixPath(*PurePosixPath(next(iter(files))).parts[:3])
    own = {PurePosixPath(name).relative_to(unit).as_posix(): data for name, data in files.items()}
    del own[CONTENTS]
    if contents.get("files") != {n: [len(d), hashlib.sha256(d).hexdigest()] for n, d in own.items()}:
        raise ValueError("it lacks files, or they are damaged")
    if not kernels or unit.name != unit_key(kernels):
        raise ValueError("it holds other kernels than it says")
    added: list[bool] = []
    add(kernels, partial(_write, own, added))
    return "added" if added else "present"


def _write(files: Mapping[str, bytes], added: list[bool], folder: Path) -> None:
    for name, data in files.items():
        atomic_write(folder / name, data)
    added.append(True)


def _contents(files: Mapping[str, bytes]) -> Mapping[str, object]:
    """The list of contents among the files of a unit."""
    for name, data in files.items():
        if name.count("/") == 3 and name.endswith(f"/{CONTENTS}"):
            return parse_record(data)
    raise ValueError("it has no list of contents")


def zip_entry(name: str, compression: int = zipfile.ZIP_DEFLATED) -> zipfile.ZipInfo:
    """Return the head of a member of an archive: without a time, so that equal content gives equal files."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = compression
    info.external_attr = 0o644 << 16
    return info
