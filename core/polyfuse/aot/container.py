"""The file of a package: a ZIP archive whose first member says what it is and what the others must be.

Weights are stored as they are, at multiples of 64 bytes of the file, so that they can be mapped into memory.
Other members are compressed. Any tool that reads ZIP archives reads packages.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfuse.aot.schema import typed
from polyfuse.base.digest import stable_json
from polyfuse.base.errors import PackageError
from polyfuse.base.files import replacing
from polyfuse.base.text import shorten
from polyfuse.cache.archive import zip_entry
from polyfuse.cache.zip_reader import DamagedArchiveError, ZipReader

ALIGNMENT = 64
"""Weights begin at multiples of so many bytes, in the file and in memory."""

FORMAT = (1, 6)
"""Version of the format. Readers take files of their own first number up to their own second one."""

MANIFEST = "package.json"
SIGNATURE = "package.sig"
"""The member with a signature of the manifest, if the package is signed."""

_MAGIC = "polyfuse package"
_LOCAL_HEADER = 30
_MANIFEST_BYTES = 1 << 26
_SIGNATURE_BYTES = 1 << 12
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
            try:
                yield writer
            finally:
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

    def finish(self, manifest: Mapping[str, object], sign: Callable[[bytes], bytes] | None = None) -> None:
        """Write what the package is, with the digests of all members that were added, and, with `sign`, what
        that returns for the bytes of the manifest.
        """
        head = {"what": _MAGIC, "format": FORMAT, "members": self._members}
        content = stable_json({**manifest, **head}).encode()
        self._zip.writestr(zip_entry(MANIFEST), content)
        if sign is not None:
            self._zip.writestr(zip_entry(SIGNATURE), sign(content))


class Archive:
    """A package that is read.

    Raises `PackageError` from all methods where the file is damaged, or is none.

    Attributes:
        path: of the file.
        manifest: what it says of itself, as plain data.
        content: the same, as the bytes that are signed.
        signature: of these bytes, as it stands in the package; None where it is not signed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._stream = open(path, "rb")  # noqa: SIM115 - closed in `close`
        except FileNotFoundError as error:
            raise PackageError(f"there is no file {path}", "correct the path") from error
        except (OSError, ValueError) as error:
            raise PackageError(f"{path} cannot be read ({error})", "correct the path") from error
        try:
            self._zip = ZipReader(self._stream)
            self.content = self._small(MANIFEST, _MANIFEST_BYTES)
            self.signature = self._small(SIGNATURE, _SIGNATURE_BYTES) if self._has(SIGNATURE) else None
            self.manifest = _parsed(self.content)
            self._check_format()
            self._members = self._listed()
        except (OSError, ValueError, RecursionError) as error:
            self.close()
            raise PackageError(
                f"{path} is no package, or is damaged ({type(error).__name__}: {shorten(str(error), 300)})",
                "copy it again, or make it again with polyfuse.aot.package",
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def members(self) -> Mapping[str, Member]:
        """What the members must be, by name."""
        return self._members

    def read(self, name: str) -> bytes:
        """The content of a member, which must be what was written."""
        return b"".join(self._chunks(name))

    def offset_of(self, name: str) -> int:
        """Where in the file a member begins that was added with `add_aligned`, and is there in full."""
        try:
            if not self._zip.members[name].stored:
                raise self._damaged(name)
            return self._zip.offset(name)
        except (OSError, KeyError, DamagedArchiveError) as error:
            raise self._damaged(name) from error

    def fileno(self) -> int:
        """The open file: what is mapped from it is what was read, whatever its name stands for by then."""
        return self._stream.fileno()

    def verify(self, name: str) -> None:
        """Read a large member chunk by chunk, and raise if it is not what was written."""
        for _ in self._chunks(name):
            pass

    def extract(self, folder: Path) -> tuple[Path, ...]:
        """Write all members into a folder, each if it is what was written, and return where they are."""
        written = []
        for name in self._members:
            target = folder / name
            if not target.parent.resolve().is_relative_to(folder.resolve()):  # a link in the folder
                raise self._damaged(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as temporary, open(temporary, "xb") as stream:
                for chunk in self._chunks(name):
                    stream.write(chunk)
            written.append(target)
        return tuple(written)

    def _has(self, name: str) -> bool:
        return name in self._zip.members

    def _small(self, name: str, limit: int) -> bytes:
        if self._has(name) and self._zip.members[name].size > limit:
            raise DamagedArchiveError(f"{name} has more than {limit} bytes")
        return self._zip.read(name)

    def _check_format(self) -> None:
        made, what = self.manifest.get("format"), self.manifest.get("what")
        numbers = isinstance(made, list) and len(made) == 2 and all(type(n) is int for n in made)
        if what != _MAGIC or not numbers:
            raise DamagedArchiveError("its description is none of a package")
        assert isinstance(made, list)
        if made[0] != FORMAT[0] or made[1] > FORMAT[1]:
            raise PackageError(
                f"{self.path} has format {made[0]}.{made[1]} of packages where this version of Polyfuse reads"
                f" {FORMAT[0]}.0 to {FORMAT[0]}.{FORMAT[1]}",
                "make it again with the version that loads it",
            )

    def _listed(self) -> dict[str, Member]:
        """What the description says of members, which must be those that there are."""
        rows = self.manifest.get("members")
        if not isinstance(rows, dict):
            raise DamagedArchiveError("it lists no members")
        found = {name: typed(Member, row, f"members.{name[:80]}") for name, row in rows.items()}
        there = self._zip.members.keys() - {MANIFEST, SIGNATURE}
        odd = sorted(there ^ found.keys())
        if odd:
            raise DamagedArchiveError(f"its members are not those that it lists, such as {odd[0][:80]}")
        wrong = [name for name, row in found.items() if row.size != self._zip.members[name].size]
        if wrong:
            raise DamagedArchiveError(f"{wrong[0]} has another size than it lists")
        return found

    def _chunks(self, name: str) -> Iterator[bytes]:
        """A member chunk by chunk; raises at the end if it was not what was written."""
        sha = hashlib.sha256()
        try:
            for chunk in self._zip.chunks(name):
                sha.update(chunk)
                yield chunk
        except (OSError, DamagedArchiveError) as error:
            raise self._damaged(name) from error
        if name not in self._members or sha.hexdigest() != self._members[name].sha256:
            raise self._damaged(name)

    def close(self) -> None:
        """Close the file. What was mapped from it stays."""
        with suppress(OSError):
            self._stream.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _damaged(self, name: str) -> PackageError:
        return PackageError(f"{name[:200]} in the package {self.path} is damaged", "copy the package again")


def _parsed(content: bytes) -> dict[str, Any]:
    found = json.loads(content)
    if not isinstance(found, dict):
        raise DamagedArchiveError("its description is no object")
    return found
