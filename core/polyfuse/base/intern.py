"""Interning without growth: equal keys give the same object for as long as somebody holds it."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class _WeakEntry(weakref.ref[_T]):
    """A weak reference that knows under which key it stands."""

    __slots__ = ("key",)

    key: Hashable


class InternTable(Generic[_T]):
    """Objects by key, held weakly: a service that compiles for weeks keeps none that nobody uses.

    Several threads may use one table.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, _WeakEntry[_T]] = {}
        self._dead: deque[_WeakEntry[_T]] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            self._forget()
            return len(self._held)

    def find(self, key: Hashable) -> _T | None:
        """Return the object of a key, or None."""
        held = self._held.get(key)
        return None if held is None else held()

    def add(self, key: Hashable, value: _T) -> _T:
        """Return the object of a key: `value`, unless another thread was quicker."""
        made: _WeakEntry[_T] = _WeakEntry(value, self._drop)
        made.key = key
        with self._lock:
            self._forget()
            found = self.find(key)
            if found is not None:
                return found
            self._held[key] = made
        return value

    def _drop(self, held: weakref.ref[_T]) -> None:
        # this runs wherever memory is collected, so it takes no lock: what it finds under the key may be
        # another object by the time it removes that; and it refers to no name of this module, which are gone
        # when a process ends
        self._dead.append(held)  # type: ignore[arg-type]

    def _forget(self) -> None:
        """Remove what nobody holds any more; a newer object may stand there already."""
        while self._dead:
            held = self._dead.popleft()
            if self._held.get(held.key) is held:
                del self._held[held.key]
