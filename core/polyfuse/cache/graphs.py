"""Compiled graphs kept between runs: where they lie, and what became of looking them up."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["GraphCounts", "GraphFolder", "graph_counts", "reset_graph_counts"]


@dataclass(frozen=True)
class GraphCounts:
    """What became of the graphs that this process compiled.

    Attributes:
        hits: found, and not compiled.
        misses: looked up, not found, and compiled.
        bypasses: not looked up, or compiled and not kept, by reason.
        errors: compiled, and could not be written.
    """

    hits: int = 0
    misses: int = 0
    bypasses: Mapping[str, int] = field(default_factory=dict)
    errors: int = 0


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
        shutil.rmtree(self.path / key, ignore_errors=True)

    def usage(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [path.stat().st_size for path in self.path.glob("*/*") if path.is_file()]
        return len(sizes), sum(sizes)


_LOCK = threading.Lock()
_EVENTS: Counter[str] = Counter()
_REASONS: Counter[str] = Counter()


def count(event: str, reason: str = "") -> None:
    """Count a `hit`, `miss`, `error` or, with its reason, a `bypass`."""
    with _LOCK:
        _EVENTS[event] += 1
        if reason:
            _REASONS[reason] += 1


def graph_counts() -> GraphCounts:
    """The counts of this process."""
    with _LOCK:
        return GraphCounts(_EVENTS["hit"], _EVENTS["miss"], dict(_REASONS), _EVENTS["error"])


def reset_graph_counts() -> None:
    """Start counting from nothing."""
    with _LOCK:
        _EVENTS.clear()
        _REASONS.clear()
