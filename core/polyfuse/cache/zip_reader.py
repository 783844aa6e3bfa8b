"""Reading ZIP archives that somebody else may have written: packages, bundles, what a remote cache sends.

Only what our writers write is accepted: one part, stored or deflated members with plain relative names, no
encryption, nothing before, between or behind the parts. Counts and sizes are compared with limits before
anything is allocated for them, and a member never gives more bytes than it announced.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Final

_END: Final = struct.Struct("<4s4H2LH")
_LOCATOR: Final = struct.Struct("<4sLQL")
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_CENTRAL: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_ONE_16: Final = 0xFFFF
_ONE_32: Final = 0xFFFFFFFF
_STORED: Final = 0
_DEFLATED: Final = 8
# Of the flags, only the one for names in UTF-8 and the level of compression mean nothing to us.
_UTF8: Final = 0x0800
_IGNORED_FLAGS: Final = _UTF8 | 0x0006
_CHUNK: Final = 1 << 20

_NO_WORD: Final = re.compile(r"[.+-]")


class DamagedArchiveError(ValueError):
    """An archive is damaged, or not one that we wrote; the text says what is wrong with it."""


@dataclass(frozen=True)
class Limits:
    """What an archive may hold.

    Attributes:
        members: how many.
        directory: bytes of the list of members.
        deflated: bytes of one compressed member when it is expanded, and of all together four times that.
        ratio: how many times as large all compressed members together may become, beyond 16 MiB.
    """

    members: int = 16_384
    directory: int = 1 << 22
    deflated: int = 1 << 28
    ratio: int = 100


@dataclass(frozen=True)
class ZipMember:
    """One member.

    Attributes:
        start: where its header begins.
        packed, size: its bytes in the archive, and when expanded.
        crc: checksum of the latter.
    """

    name: str
    stored: bool
    start: int
    packed: int
    size: int
    crc: int


class ZipReader:
    """The members of an archive.

    Raises `DamagedArchiveError` from all methods where the archive is damaged, and `OSError` where it cannot
    be read. Not safe to use from several threads.

    Args:
        stream: of the archive, which can be sought.
        limits: for what it may hold.
    """

    def __init__(self, stream: IO[bytes], limits: Limits | None = None) -> None:
        self._stream = stream
        self._size = stream.seek(0, io.SEEK_END)
        limits = limits or Limits()
        count, length, offset = self._directory(limits)
        self._end = offset
        self.members: Mapping[str, ZipMember] = self._listed(self._at(offset, length), count)
        self._check_sizes(limits)

    def read(self, name: str) -> bytes:
        """The content of a member."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a member chunk by chunk; raises at the end if it is not what was written."""
        member = self._member(name)
        offset, left, crc, size = self.offset(name), member.packed, 0, 0
        expand = None if member.stored else zlib.decompressobj(-15)
        while left or expand is not None:
            raw = self._at(offset, min(left, _CHUNK))
            offset, left = offset + len(raw), left - len(raw)
            for chunk in (raw,) if expand is None else self._expanded(expand, raw, member, size):
                crc, size = zlib.crc32(chunk, crc), size + len(chunk)
                yield chunk
            if expand is not None and (expand.eof or not left):
                break
        whole = expand is None or (expand.eof and not expand.unused_data and not left)
        if not whole or size != member.size or crc != member.crc:
            raise DamagedArchiveError(f"{name} is damaged")

    def offset(self, name: str) -> int:
        """Where the bytes of a member begin; its own header must say what the list does.

        Raises:
            DamagedArchiveError: it does not.
        """
        member = self._member(name)
        head = _LOCAL.unpack(self._at(member.start, _LOCAL.size))
        mark, _, flags, method, _, _, crc, packed, size, name_length, extra_length = head
        start = member.start + _LOCAL.size
        found = self._at(start, name_length)
        extra = self._at(start + name_length, extra_length)
        if _ONE_32 in (packed, size):
            size, packed = _large(extra, 2)
        method_right = method == (_STORED if member.stored else _DEFLATED)
        right = (mark, crc, packed, size) == (b"PK\3\4", member.crc, member.packed, member.size)
        if not right or not method_right or flags & ~_IGNORED_FLAGS or found != name.encode():
            raise DamagedArchiveError(f"{name} is damaged")
        begin = start + name_length + extra_length
        if begin + member.packed > self._end:
            raise DamagedArchiveError(f"{name} is damaged")
        return begin

    def _member(self, name: str) -> ZipMember:
        if name not in self.members:
            raise DamagedArchiveError(f"{name} is missing")
        return self.members[name]

    def _at(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset + length > self._size:
            raise DamagedArchiveError("it is cut short")
        self._stream.seek(offset)
        found = self._stream.read(length)
        if len(found) != length:
            raise DamagedArchiveError("it is cut short")
        return found

    def _directory(self, limits: Limits) -> tuple[int, int, int]:
        """How many members are listed, and the bytes and the offset of the list."""
        end = _END.unpack(self._at(self._size - _END.size, _END.size))
        mark, disk, first, here, count, length, offset, comment = end
        if mark != b"PK\5\6" or disk or first or here != count or comment:
            raise DamagedArchiveError("it has no list of members at its end")
        behind = self._size - _END.size
        if count == _ONE_16 or _ONE_32 in (length, offset):
            behind -= _LOCATOR.size + _END_64.size
            locator = _LOCATOR.unpack(self._at(behind + _END_64.size, _LOCATOR.size))
            row = _END_64.unpack(self._at(behind, _END_64.size))
            if locator != (b"PK\6\7", 0, behind, 1) or row[0] != b"PK\6\6" or row[4:6] != (0, 0):
                raise DamagedArchiveError("it has no list of members at its end")
            here, count, length, offset = row[6:]
        if here != count or offset + length != behind:
            raise DamagedArchiveError("its list of members is not at its end")
        if count > limits.members or length > limits.directory:
            raise DamagedArchiveError(
                f"it lists {count} members in {length} bytes, of at most {limits.members} in"
                f" {limits.directory}"
            )
        return count, length, offset

    def _listed(self, rows: bytes, count: int) -> Mapping[str, ZipMember]:
        found: dict[str, ZipMember] = {}
        at = 0
        for _ in range(count):
            if at + _CENTRAL.size > len(rows):
                raise DamagedArchiveError("its list of members is cut short")
            row = _CENTRAL.unpack_from(rows, at)
            mark, _, _, flags, method, _, _, crc, packed, size, *lengths, disk, _, _, start = row
            at += _CENTRAL.size
            name, extra, comment = (
                rows[at + sum(lengths[:i]) : at + sum(lengths[: i + 1])] for i in range(3)
            )
            at += sum(lengths)
            text = name.decode("utf-8" if flags & _UTF8 else "ascii", "replace")
            if at > len(rows) or mark != b"PK\1\2" or disk or comment or flags & ~_IGNORED_FLAGS:
                raise DamagedArchiveError("its list of members is damaged")
            if not is_plain_name(text) or text in found or method not in (_STORED, _DEFLATED):
                raise DamagedArchiveError(f"its member {text[:100]!r} cannot be one of ours")
            wide = [value for value in (size, packed, start) if value == _ONE_32]
            large = iter(_large(extra, len(wide)) if wide else ())
            size, packed, start = (next(large) if v == _ONE_32 else v for v in (size, packed, start))
            found[text] = ZipMember(text, method == _STORED, start, packed, size, crc)
        if at != len(rows):
            raise DamagedArchiveError("its list of members is damaged")
        return found

    def _check_sizes(self, limits: Limits) -> None:
        end = expanded = packed = 0
        for member in sorted(self.members.values(), key=lambda m: m.start):
            if member.start < end or member.start + _LOCAL.size + member.packed > self._end:
                raise DamagedArchiveError(f"{member.name} lies outside, or over another member")
            end = member.start + _LOCAL.size + len(member.name) + member.packed
            if member.stored and member.size != member.packed:
                raise DamagedArchiveError(f"{member.name} is damaged")
            if not member.stored:
                expanded, packed = expanded + member.size, packed + member.packed
                if member.size > limits.deflated:
                    raise DamagedArchiveError(
                        f"{member.name} expands to {member.size} bytes, of at most {limits.deflated}"
                    )
        if expanded > min(4 * limits.deflated, (1 << 24) + limits.ratio * packed):
            raise DamagedArchiveError(f"{packed} bytes expand to {expanded}, which is more than ours do")

    def _expanded(
        self, expand: zlib._Decompress, raw: bytes, member: ZipMember, done: int
    ) -> Iterator[bytes]:
        try:
            while True:
                # one byte more than announced is enough to tell
                chunk = expand.decompress(raw, min(_CHUNK, member.size - done + 1))
                done += len(chunk)
                if done > member.size:
                    raise DamagedArchiveError(f"{member.name} is larger than it says")
                if chunk:
                    yield chunk
                raw = expand.unconsumed_tail
                if expand.eof or not raw:
                    return
        except zlib.error as error:
            raise DamagedArchiveError(f"{member.name} is damaged ({error})") from error


def is_plain_name(name: str) -> bool:
    """Whether a name is that of a file somewhere below a folder: parts of letters, digits and `_.+-`.

    Letters are those of Python's identifiers: entries of packages are called as their users say.
    """
    return len(name) <= 1000 and all(_is_plain_part(part) for part in name.split("/"))


def _is_plain_part(part: str) -> bool:
    plain = f"_{_NO_WORD.sub('_', part)}".isidentifier()
    return 1 <= len(part) <= 200 and not part.startswith(".") and plain


def _large(extra: bytes, count: int) -> tuple[int, ...]:
    """The numbers of 64 bits in an extra field, of which there must be so many."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        at += 4
        if kind == 1 and 8 * count <= size <= len(extra) - at:
            return tuple(int(n) for n in struct.unpack_from(f"<{count}Q", extra, at))
        at += size
    raise DamagedArchiveError("a member has no size")
