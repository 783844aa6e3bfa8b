"""Content addresses: one hash, one spelling, and one canonical text for plain data."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePath

# 256 bits in base32 are 52 characters of which the last carries a single bit's worth of choice: it is
# dropped.
DIGEST_LENGTH = 51


def digest(*parts: str | bytes) -> str:
    """Return the address of `parts`: SHA-256 in lower-case base32, 51 characters.

    Each part is length-prefixed, so `digest("ab", "c") != digest("a", "bc")`.
    """
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return base64.b32encode(sha.digest()).decode("ascii")[:DIGEST_LENGTH].lower()


def digest_files(paths: Sequence[PurePath]) -> str:
    """Return one address for the names and contents of files, in the order given."""
    parts: list[str | bytes] = []
    for path in paths:
        parts.append(path.name)
        with open(path, "rb") as stream:
            parts.append(stream.read())
    return digest(*parts)


def stable_json(value: object) -> str:
    """Return the canonical JSON text of plain data: sorted keys, no spaces.

    Tuples become lists, paths and enums become text, dataclasses become objects. Anything else that JSON
    lacks, sets included, is refused: its order would not be stable.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, PurePath):
        return value.as_posix()
    if isinstance(value, bytes):
        return value.hex()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no canonical text; convert it to plain data first")


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise TypeError(f"a key of canonical JSON must be text, not {type(key).__name__}; convert it first")
