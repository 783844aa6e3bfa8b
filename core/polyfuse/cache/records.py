"""Small records in the cache folder, each with the SHA-256 of its content: one that was changed since it was
written, by whatever, reads as if it were not there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from polyfuse.base.digest import stable_json
from polyfuse.base.files import atomic_write, read_text

_DIGEST: Final = "sha256"

# Larger ones were not written by us: the largest list the files of a unit.
_MOST: Final = 1 << 26


def record_text(content: Mapping[str, object]) -> str:
    """The text of a record, which is a JSON object with its digest in it."""
    return stable_json({**content, _DIGEST: _digest(json.loads(stable_json(content)))})


def parse_record(text: str | bytes) -> dict[str, object]:
    """The content of a record; empty where the text is none, or was changed."""
    try:
        found = json.loads(text)
        if isinstance(found, dict) and found.pop(_DIGEST, None) == _digest(found):
            return found
    except (ValueError, RecursionError):
        pass
    return {}


def read_record(path: Path) -> dict[str, object]:
    """The record in a file; empty where it is missing or was changed."""
    try:
        if path.stat().st_size > _MOST:
            return {}
    except (OSError, ValueError):
        return {}
    text = read_text(path)
    return parse_record(text) if text else {}


def write_record(path: Path, content: Mapping[str, object], *, keep_equal: bool = False) -> None:
    """Write a record, as `atomic_write` does."""
    atomic_write(path, record_text(content), keep_equal=keep_equal)


def _digest(plain: object) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
