"""Artifacts in one file, to take them to another folder: what bundles and remote stores hold.

A zip file whose members are named as in the cache folder, behind one that says which format the store has.
Names that are none of a cache folder are left out, and so are artifacts that are cut short. But kernels and
graphs are code: archives are to be had only from those whose code one would run.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol

from polyfuse.base.code import version
from polyfuse.base.digest import stable_json
from polyfuse.base.errors import CacheError
from polyfuse.base.files import atomic_write
from polyfuse.cache.artifacts import CONTENTS, KINDS, Artifact, kernels_in
from polyfuse.cache.keys import STORE_FORMAT, unit_key
from polyfuse.cache.records import parse_record
from polyfuse.cache.sealing import seal_of, seals_equal
from polyfuse.cache.zip_reader import Limits, ZipReader, is_plain_name

_HEAD: Final = "polyfuse-cache.json"
_SEAL: Final = "polyfuse-cache.seal"

PICKLED: Final = frozenset({"compiled"})
"""Kinds of artifacts whose reading can execute anything."""

CARRIED: Final = tuple(kind for kind in KINDS if kind != "captures")
"""Kinds of artifacts that archives hold. What Dynamo made of frames is read where it was written, and nowhere
else: it names files, and runs instead of the user's functions."""

# A whole cache folder may go into one archive.
_LIMITS: Final = Limits(members=1 << 20, directory=1 << 28)


class AddUnit(Protocol):
    """Adds kernels as one unit, which a function fills, unless it is there; such as `KernelStore.add`."""

    def __call__(self, kernels: Mapping[str, str], build: Callable[[Path], None], /) -> object: ...


@dataclass(frozen=True)
class Unpacked:
    """What became of the artifacts of an archive: added, there before, damaged, or refused."""

    added: int = 0
    present: int = 0
    damaged: int = 0
    refused: int = 0


def pack(root: Path, found: Iterable[Artifact], stream: IO[bytes], secret: bytes | None = None) -> int:
    """Write artifacts of a cache folder to a stream, and return how many. Those that are removed meanwhile,
    units that do not say what is in them, and without a secret compiled graphs, are left out.

    Args:
        secret: with which the archive is sealed.
    """
    count = 0
    sealed: list[tuple[str, bytes]] = []
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zip_entry(_HEAD), stable_json({"format": STORE_FORMAT, "polyfuse": version()}))
        for item in found:
            if item.kind in PICKLED and secret is None:
                continue
            try:
                paths = sorted(path for path in item.path.rglob("*") if path.is_file()) or [item.path]
                files = {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}
            except OSError:
                continue
            if item.kind == "kernels" and not kernels_in(_contents(files)):
                continue
            for name, content in files.items():
                archive.writestr(zip_entry(name), content)
                if secret is not None:
                    sealed.append((name, hashlib.sha256(content).digest()))
            count += 1
        if secret is not None:
            archive.writestr(zip_entry(_SEAL), seal_of(secret, sealed))
    return count


def unpack(
    root: Path,
    stream: IO[bytes],
    add: AddUnit,
    secret: bytes | None = None,
    kinds: Collection[str] = CARRIED,
) -> Unpacked:
    """Add what an archive holds to a cache folder, where it is not there.

    Args:
        add: adds units of kernels.
        secret: with which the archive must be sealed. Without one, compiled graphs are refused: reading them
            can execute anything.
        kinds: of artifacts that are added, and no others.

    Raises:
        CacheError: it is no archive, one for another version of the store, or not sealed.
    """
    try:
        archive = ZipReader(stream, _LIMITS)
        head = json.loads(archive.read(_HEAD))
        if not isinstance(head, dict) or head.get("format") != STORE_FORMAT:
            raise CacheError("the archive was written for another format of the cache", "write it anew")
        if secret is not None and not _is_sealed(archive, secret):
            raise CacheError(
                "the archive is not sealed with the secret of the option `remote_key`",
                "get it from a machine that has the secret",
            )
        taken = [kind for kind in kinds if kind not in PICKLED or secret is not None]
        results = [
            _unpack_one(archive, root, kind, names, add) if kind in taken else "refused"
            for (kind, _), names in _grouped(archive).items()
        ]
    except (ValueError, RecursionError) as error:
        raise CacheError(f"it is no archive of a cache, or damaged ({error})", "write it anew") from error
    return Unpacked(*(results.count(name) for name in ("added", "present", "damaged", "refused")))


def _is_sealed(archive: ZipReader, secret: bytes) -> bool:
    if _SEAL not in archive.members or archive.members[_SEAL].size > 1000:
        return False
    names = archive.members.keys() - {_HEAD, _SEAL}
    parts = [(name, _digest_of(archive, name)) for name in names]
    return seals_equal(archive.read(_SEAL).decode("ascii", "replace"), seal_of(secret, parts))


def _digest_of(archive: ZipReader, name: str) -> bytes:
    sha = hashlib.sha256()
    for chunk in archive.chunks(name):
        sha.update(chunk)
    return sha.digest()


def _grouped(archive: ZipReader) -> Mapping[tuple[str, str], list[str]]:
    """The members of each artifact, by its kind and path; members that belong to none are left out."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in archive.members:
        parts = name.split("/")
        depth = 2 + KINDS.get(parts[0], "").count("/")
        if parts[0] in CARRIED and len(parts) >= depth and is_plain_name(name):
            groups.setdefault((parts[0], "/".join(parts[:depth])), []).append(name)
    return groups


def _unpack_one(archive: ZipReader, root: Path, kind: str, names: list[str], add: AddUnit) -> str:
    try:
        files = {name: archive.read(name) for name in names}
        if kind == "kernels":
            return _unpack_unit(files, add)
        missing = [name for name in names if not (root / name).exists()]
        for name in missing:
            atomic_write(root / name, files[name])
        return "added" if missing else "present"
    except (ValueError, RecursionError):
        return "damaged"


def _unpack_unit(files: Mapping[str, bytes], add: AddUnit) -> str:
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
