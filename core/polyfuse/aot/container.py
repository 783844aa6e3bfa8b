"""The file of a package: a ZIP archive whose first member says what it is and what the others must be.

Weights are stored as they are, at multiples of 64 bytes of the file, so that they can be mapped into memory.
Other members are compressed. Any tool that reads ZIP archives reads packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfuse.base.digest import stable_json
from polyfuse.base.errors import PackageError
from polyfuse.base.files import replacing
from polyfuse.cache.archive import zip_entry

__all__ = ["ALIGNMENT", "FORMAT", "Archive", "ArchiveWriter", "Member"]

ALIGNMENT = 64
"""Weights begin at multiples of so many bytes, in the file and in memory."""

FORMAT = (1, 2)
"""Version of the format. Readers take files of their own first number, and refuse others."""

_MANIFEST = "package.json"
_MAGIC = "polyfuse package"
_LOCAL_HEADER = 30
_PADDING_ID = 0x4650
"""Of an extra field without meaning, which makes a local header as long as is needed."""
_CHUNK = 1 << 22
_LARGE = 1 << 31
"""Members of so many bytes have 64 bits for their size."""


@dataclass(frozen=True)
class Member:
    """What a member must be: its bytes, and their digest."""

    size: int
    sha256: str


class ArchiveWriter:
    """Writes one package through a temporary file, which takes its final name when all is written."""

    def __init__(self, stream: Any) -> None:
        self._zip = zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED)
        self._stream = stream
        self._members: dict[str, Member] = {}

    @staticmethod
    @contextmanager
    def create(path: Path) -> Iterator[ArchiveWriter]:
        """Yield a writer; what is written replaces `path` when the block ends well."""
        with replacing(path) as temporary, open(temporary, "xb") as stream:
            writer = ArchiveWriter(stream)
            yield writer
            writer._zip.close()

    def add(self, name: str, content: bytes) -> None:
        """Add a member, compressed."""
        self._zip.writestr(zip_entry(name), content)
        self._members[name] = Member(len(content), hashlib.sha256(content).hexdigest())

    def add_aligned(self, name: str, size: int, chunks: Iterable[Any]) -> None:
        """Add a member of `size` bytes as it is, at a multiple of `ALIGNMENT` bytes of the file."""
        info = zip_entry(name, zipfile.ZIP_STORED)
        large = size >= _LARGE
        # the header of a large member carries twenty more bytes
        start = self._stream.tell() + _LOCAL_HEADER + len(name.encode()) + 4 + (20 if large else 0)
        info.extra = struct.pack("<HH", _PADDING_ID, -start % ALIGNMENT) + bytes(-start % ALIGNMENT)
        info.file_size = size
        sha = hashlib.sha256()
        with self._zip.open(info, "w", force_zip64=large) as member:
            for chunk in chunks:
                sha.update(chunk)
                member.write(chunk)
        self._members[name] = Member(size, sha.hexdigest())

    def finish(self, manifest: Mapping[str, object]) -> None:
        """Write what the package is, with the digests of all members that were added."""
        head = {"what": _MAGIC, "format": FORMAT, "members": self._members}
        self._zip.writestr(zip_entry(_MANIFEST), stable_json({**manifest, **head}))


class Archive:
    """A package that is read.

    Raises `PackageError` from all methods where the file is damaged, or is none.

    Attributes:
        path: of the file.
        manifest: what it says of itself, as plain data.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            self.manifest: dict[str, Any] = json.loads(self._zip.read(_MANIFEST))
            made, what = tuple(self.manifest["format"]), self.manifest["what"]
            self._members = {name: Member(**row) for name, row in self.manifest["members"].items()}
        except FileNotFoundError as error:
            raise PackageError(f"there is no file {path}", "correct the path") from error
        except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError) as error:
            raise PackageError(
                f"{path} is no package, or is damaged ({type(error).__name__}: {error})",
                "copy it again, or make it again with polyfuse.aot.package",
            ) from error
        if what != _MAGIC or made[0] != FORMAT[0]:
            self.close()
            raise PackageError(
                f"{path} has format {made[0]} of packages where this version of Polyfuse reads {FORMAT[0]}",
                "make it again with the version that loads it",
            )

    @property
    def members(self) -> Mapping[str, Member]:
        """What the members must be, by name."""
        return self._members

    def read(self, name: str) -> bytes:
        """The content of a member, which must be what was written."""
        try:
            content = self._zip.read(name)
        except (OSError, KeyError, zipfile.BadZipFile, ValueError) as error:
            raise self._damaged(name) from error
        if hashlib.sha256(content).hexdigest() != self._members[name].sha256:
            raise self._damaged(name)
        return content

    def offset_of(self, name: str) -> int:
        """Where in the file a member begins that was added with `add_aligned`, and is there in full."""
        try:
            info = self._zip.getinfo(name)
            with open(self.path, "rb") as stream:
                stream.seek(info.header_offset)
                header = stream.read(_LOCAL_HEADER)
                stream.seek(0, os.SEEK_END)
                end = stream.tell()
            name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
        except (OSError, KeyError, struct.error) as error:
            raise self._damaged(name) from error
        start = info.header_offset + _LOCAL_HEADER + int(name_bytes) + int(extra_bytes)
        size = self._members[name].size
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != size or start + size > end:
            raise self._damaged(name)
        return start

    def verify(self, name: str) -> None:
        """Read a large member piece by piece, and raise if it is not what was written."""
        for _ in self._chunks(name):
            pass

    def extract(self, folder: Path) -> tuple[Path, ...]:
        """Write all members into a folder, each if it is what was written, and return where they are."""
        written = []
        for name in self._members:
            place = folder / name
            if not place.resolve().is_relative_to(folder.resolve()):
                raise self._damaged(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as temporary, open(temporary, "xb") as stream:
                for chunk in self._chunks(name):
                    stream.write(chunk)
            written.append(place)
        return tuple(written)

    def _chunks(self, name: str) -> Iterator[bytes]:
        """A member piece by piece; raises at the end if it was not what was written."""
        sha = hashlib.sha256()
        try:
            with self._zip.open(name) as member:
                while chunk := member.read(_CHUNK):
                    sha.update(chunk)
                    yield chunk
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise self._damaged(name) from error
        if sha.hexdigest() != self._members[name].sha256:
            raise self._damaged(name)

    def close(self) -> None:
        """Close the file. What was mapped from it stays."""
        self._zip.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _damaged(self, name: str) -> PackageError:
        return PackageError(f"{name} in the package {self.path} is damaged", "copy the package again")
