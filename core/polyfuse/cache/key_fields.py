"""What the keys of compiled graphs were made of, and why graphs bypassed the graph cache: notes beside its
entries, for people who ask why a graph was not found. Nothing is looked up by them.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from polyfuse.base.errors import CacheError
from polyfuse.base.files import atomic_write

# Bytes of a list of reasons; beyond, no more are counted.
_MOST: Final = 1 << 20


@dataclass(frozen=True)
class Difference:
    """A field in which two keys differ.

    Attributes:
        field: its name.
        first, second: its values, of a text of many lines the first lines that differ; empty where there is
            none.
    """

    field: str
    first: str
    second: str


class KeyNotes:
    """The notes of one cache folder. Writing never raises: without a note, `polyfuse cache` shows less."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "compiled" / ".keys"
        self._bypasses = root / "compiled" / ".bypasses"
        self._untaken = root / "compiled" / ".captures"

    def write(self, key: str, fields: Mapping[str, str]) -> None:
        """Note what a key was made of."""
        content = zlib.compress(json.dumps(dict(fields)).encode(), 1)
        with contextlib.suppress(OSError):
            atomic_write(self._folder / key, content)

    def find(self, prefix: str) -> tuple[str, Mapping[str, str]]:
        """A key by its first characters, and what it was made of.

        Raises:
            CacheError: no key begins so, or several do.
        """
        found = [path for path in sorted(self._folder.glob("[!.]*")) if path.name.startswith(prefix)]
        if len(found) != 1:
            many = "is no key that was noted" if not found else f"is the beginning of {len(found)} keys"
            raise CacheError(f"{prefix!r} {many}", "name one that `polyfuse cache graphs` lists")
        try:
            return found[0].name, json.loads(zlib.decompress(found[0].read_bytes()))
        except (OSError, ValueError, zlib.error) as error:
            raise CacheError(f"the note of {found[0].name} is damaged", "compile the graph again") from error

    def noted(self) -> list[tuple[str, float]]:
        """Keys with the times at which they were noted, in seconds since the epoch, the last one first."""
        found: list[tuple[str, float]] = []
        for path in self._folder.glob("[!.]*"):
            with contextlib.suppress(OSError):
                found.append((path.name, path.stat().st_mtime))
        return sorted(found, key=lambda item: (-item[1], item[0]))

    def bypassed(self, reason: str) -> None:
        """Count a graph that bypassed the graph cache."""
        _append(self._bypasses, reason)

    def bypasses(self) -> Mapping[str, int]:
        """How many graphs bypassed it since the notes were removed, by reason."""
        return _counted(self._bypasses)

    def not_captured(self, reason: str) -> None:
        """Count a frame of which what Dynamo made is not stored, or that is not looked up."""
        _append(self._untaken, reason)

    def captures(self) -> Mapping[str, int]:
        """How many frames were not stored, or not looked up, since the notes were removed, by reason."""
        return _counted(self._untaken)

    def clear(self) -> None:
        """Remove the notes."""
        for path in (*self._folder.glob("*"), self._bypasses, self._untaken):
            with contextlib.suppress(OSError):
                os.unlink(path)


def _append(path: Path, reason: str) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as stream:
            if stream.tell() < _MOST:
                stream.write(f"{' '.join(reason.split())}\n".encode())


def _counted(path: Path) -> Mapping[str, int]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return dict(Counter(lines).most_common())


def differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    """The fields in which two keys differ."""
    found: list[Difference] = []
    for field in dict.fromkeys((*first, *second)):
        one, other = first.get(field, ""), second.get(field, "")
        if one == other:
            continue
        for line, its in zip_longest(one.splitlines(), other.splitlines(), fillvalue=""):
            if line != its:
                found.append(Difference(field, line, its))
                break
    return found
