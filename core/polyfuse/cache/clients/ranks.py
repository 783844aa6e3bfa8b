"""The store of a process group as a remote store: what one rank of a program made, the others find."""

from __future__ import annotations

import json
from typing import Final

from polyfuse.base.log import get_logger
from polyfuse.torch_compat.groups import SharedStore

_log = get_logger("ranks")

_CHUNK: Final = 1 << 20
"""Bytes under one key: torch's store ends the connection of a rank that sends more than eight mebibytes."""


class RankStore:
    """Named contents in the memory of the process that holds the group's store, until the program ends.

    Args:
        store: of the group.
        machine: what only machines have that can use each other's kernels; others see nothing of it.
        limit: most bytes of all ranks together; what would be more is not stored.
    """

    def __init__(self, store: SharedStore, machine: str, limit: int) -> None:
        self._store, self._limit = store, limit
        self._prefix = f"cache/{machine}"

    def get(self, name: str) -> bytes | None:
        """What a rank put under a name; None where none did."""
        head = self._store.find(f"{self._prefix}/{name}")
        if head is None:
            return None
        version, count = json.loads(head)
        found = [self._store.find_bytes(f"{self._prefix}/{name}/{version}/{n}") for n in range(count)]
        return None if None in found else b"".join(part for part in found if part is not None)

    def put(self, name: str, content: bytes) -> None:
        """Store something under a name, if there is room."""
        whole = self._store.add("cache/bytes", len(content))
        if whole > self._limit:
            self._store.add("cache/bytes", -len(content))
            _log.info(
                "%s is not given to other ranks: all would have %d bytes of %d", name, whole, self._limit
            )
            return
        parts = [content[at : at + _CHUNK] for at in range(0, len(content), _CHUNK)]
        # two ranks may put different contents under one name: the last head names parts of one of them
        version = self._store.add("cache/version", 1)
        for number, part in enumerate(parts):
            self._store.put(f"{self._prefix}/{name}/{version}/{number}", part)
        self._store.put(f"{self._prefix}/{name}", json.dumps([version, len(parts)]))
