"""The graph cache: where its entries are stored, and counts of hits, misses and bypasses."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polyfuse.base.files import atomic_write, remove_folder
from polyfuse.cache.artifacts import mark_used


@dataclass(frozen=True)
class GraphCounts:
    """What became of the graphs that this process compiled.

    Attributes:
        hits: found, and not compiled.
        captured: of these, found without being traced by Dynamo.
        traced: bypassed the cache until they were traced, and were found then; of a graph with gradients, the
            forward and the backward.
        misses: looked up, not found, and compiled.
        bypasses: not looked up, or compiled and not stored, by reason.
        errors: compiled, and could not be written.
    """

    hits: int = 0
    misses: int = 0
    bypasses: Mapping[str, int] = field(default_factory=dict)
    errors: int = 0
    captured: int = 0
    traced: int = 0


class GraphFolder:
    """The folder of compiled graphs: one for each key, with an entry for each set of guards."""

    def __init__(self, root: Path) -> None:
        self.path = root / "compiled"

    def holds(self, key: str) -> bool:
        """Whether there is an entry under a key."""
        try:
            return any((self.path / key).iterdir())
        except OSError:
            return False

    def drop(self, key: str) -> None:
        """Remove what lies under a key: it cannot be used any more."""
        remove_folder(self.path / key)

    def adopt(self, key: str, other: Path, name_of: Callable[[bytes], str]) -> None:
        """Copy the entries under a key from another root folder, which is only read, if they are whole."""
        for path in sorted((other / "compiled" / key).glob("[!.]*")):
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                if name_of(content) == path.name:
                    atomic_write(self.path / key / path.name, content)

    def mend(self, key: str, name_of: Callable[[bytes], str]) -> None:
        """Note that a key is looked up, and remove damaged entries: those whose content has another name.

        torch reads what is left once more: 10 µs for an entry of 56 KB, less than it takes to wait in
        for one more private function of torch's that could read both at once.
        """
        mark_used(self.path / key)
        for path in (self.path / key).glob("[!.]*"):
            with contextlib.suppress(OSError):
                if name_of(path.read_bytes()) != path.name:
                    path.unlink()


_LOCK = threading.Lock()
_EVENTS: Counter[str] = Counter()
_REASONS: Counter[str] = Counter()


def count(event: str, reason: str = "") -> None:
    """Count a `hit`, `miss`, `error`, `captured`, `traced` or, with its reason, a `bypass`."""
    with _LOCK:
        _EVENTS[event] += 1
        if reason:
            _REASONS[reason] += 1


def graph_counts() -> GraphCounts:
    """The counts of this process."""
    with _LOCK:
        return GraphCounts(
            *(_EVENTS["hit"], _EVENTS["miss"], dict(_REASONS), _EVENTS["error"], _EVENTS["captured"]),
            _EVENTS["traced"],
        )


def reset_graph_counts() -> None:
    """Start counting from nothing."""
    with _LOCK:
        _EVENTS.clear()
        _REASONS.clear()
