"""Damaged and hostile packages and archives: made from a whole one by a seed, each in one of the ways in
which files go wrong or are made to.
"""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["MUTATIONS", "mutated", "rewritten"]

Change = Callable[[random.Random, bytes], bytes]

_NUMBERS = (0, 1, 2, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1 << 62, 1 << 70, 1e308, "", "x" * 5000, "../../etc/passwd", "/etc", "\0"),
    *([], {}, [[]], [1, 2], {"a": 1}, "().__class__.__base__.__subclasses__()", "9**9**9", "cpu", "forward"),
)
_NAMES = ("../up", "/root", "a/../../b", "", ".hidden", "con:", "a\\b", "é", "x" * 70_000, "package.json")


def flipped(rng: random.Random, data: bytes) -> bytes:
    """A few bits are not what they were."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def cut(rng: random.Random, data: bytes) -> bytes:
    """The end is missing, or a chunk from the middle."""
    first = rng.randrange(len(data))
    return data[:first] if rng.random() < 0.5 else data[:first] + data[first + rng.randint(1, 4096) :]


def filled(rng: random.Random, data: bytes) -> bytes:
    """A chunk is zeros, ones or noise, as when a block of the disk is lost."""
    first, length = rng.randrange(len(data)), rng.choice((1, 16, 512, 4096))
    chunk = rng.choice((bytes(length), b"\xff" * length, rng.randbytes(length)))
    return data[:first] + chunk + data[first + length :]


def grown(rng: random.Random, data: bytes) -> bytes:
    """Something stands before, behind or within it."""
    first = rng.choice((0, len(data), rng.randrange(len(data))))
    return data[:first] + rng.randbytes(rng.randint(1, 200)) + data[first:]


def numbered(rng: random.Random, data: bytes) -> bytes:
    """A number in one of the heads is an extreme one."""
    marks = [i for mark in (b"PK\3\4", b"PK\1\2", b"PK\5\6") for i in _positions(data, mark)]
    at = rng.choice(marks) + rng.randrange(4, 42)
    size = rng.choice((2, 4))
    number = (rng.choice(_NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
    return data[:at] + number + data[at + size :]


def looped(rng: random.Random, data: bytes) -> bytes:
    """The first member claims, in 64 bits, a size that leads backwards or nowhere."""
    head = bytearray(data)
    length, extra = struct.unpack_from("<HH", head, 26)
    if extra >= 20:
        size = rng.choice((-30 - length - extra, -1, 1 << 62, 0, -(1 << 63))) & ((1 << 64) - 1)
        struct.pack_into("<II", head, 18, 0xFFFFFFFF, 0xFFFFFFFF)
        struct.pack_into("<HHQQ", head, 30 + length, 1, 16, size, size)
    return bytes(head)


def renamed(rng: random.Random, data: bytes) -> bytes:
    """A member has a name that leads elsewhere, or that another one has."""
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    return rewritten(data, rename={rng.choice(names): rng.choice((*_NAMES, rng.choice(names)))})


def bomb(rng: random.Random, data: bytes) -> bytes:
    """A member expands to far more than it has, or than it says."""
    size = rng.choice((1 << 24, 1 << 26))
    packed = zlib.compressobj(9, wbits=-15)
    content = packed.compress(bytes(size)) + packed.flush()
    said = rng.choice((size, 10, 0xFFFFFFFE))
    name = rng.choice(("package.json", "kernels/x/kernels.so", "programs/forward.py"))
    head = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 8, 0, 33, 0, len(content), said, len(name), 0)
    row = (b"PK\1\2", 20, 20, 0, 8, 0, 33, 0, len(content), said, len(name), 0, 0, 0, 0, 0, 0)
    listed = struct.pack("<4s6H3L5H2L", *row) + name.encode()
    body = head + name.encode() + content
    return body + listed + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(listed), len(body), 0)


def many(rng: random.Random, data: bytes) -> bytes:
    """The end says that there are far more members than there is room for."""
    at = data.rindex(b"PK\5\6")
    count = rng.choice((0, 1, 0xFFFE, 0xFFFF))
    return data[: at + 8] + struct.pack("<HH", count, count) + data[at + 12 :]


def described(rng: random.Random, data: bytes) -> bytes:
    """One value in the description is another one; the checksums are right."""

    def change(content: bytes) -> bytes:
        manifest = json.loads(content)
        holder, key = rng.choice(list(_values(manifest)))
        if rng.random() < 0.2 and isinstance(holder, dict):
            del holder[key]
        elif rng.random() < 0.1 and isinstance(holder, dict):
            holder[rng.choice(("more", "../x", "__class__"))] = rng.choice(_VALUES)
        else:
            holder[key] = rng.choice(_VALUES)
        return json.dumps(manifest).encode()

    return rewritten(data, change={"package.json": change})


def nested(rng: random.Random, data: bytes) -> bytes:
    """The description is nested deeply, is no JSON, or is something else."""
    deep = b"[" * 100_000, b'{"a":' * 50_000
    content = rng.choice((*deep, b"{", b"[]", b"3", b"\xff\xfe", b'"text"', b"NaN"))
    return rewritten(data, change={"package.json": lambda _: content})


MUTATIONS: tuple[Change, ...] = (
    *(flipped, flipped, cut, filled, grown, numbered, numbered, looped, renamed, bomb, many),
    *(described, described, described, described, nested),
)


def mutated(seed: int, data: bytes) -> bytes:
    """The package of a seed."""
    rng = random.Random(seed)
    found = rng.choice(MUTATIONS)(rng, data)
    return found or b"\0"


def rewritten(
    data: bytes,
    change: Mapping[str, Callable[[bytes], bytes]] | None = None,
    rename: Mapping[str, str] | None = None,
) -> bytes:
    """The archive with members that were changed or renamed, and right checksums."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w") as new:
        for info in old.infolist():
            content = (change or {}).get(info.filename, bytes)(old.read(info))
            name = (rename or {}).get(info.filename, info.filename)[:60_000]
            made = zipfile.ZipInfo(name)
            made.compress_type = info.compress_type
            made.extra = info.extra if info.compress_type == zipfile.ZIP_STORED else b""
            new.writestr(made, content)
    return stream.getvalue()


def _positions(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


def _values(item: Any) -> list[tuple[Any, Any]]:
    pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    return [found for key, value in pairs for found in ((item, key), *_values(value))]
