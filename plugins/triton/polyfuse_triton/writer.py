"""Indented text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Writer"]


class Writer:
    """Collects lines, each with its indentation."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        """Add one line."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def indented(self) -> Iterator[None]:
        """Indent what is written inside."""
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def apart(self) -> Iterator[list[str]]:
        """Collect what is written inside in a list of its own; `add` puts it in its place."""
        kept, self._lines = self._lines, []
        found = self._lines
        yield found
        self._lines = kept

    def add(self, lines: list[str]) -> None:
        """Add lines that have their indentation."""
        self._lines.extend(lines)

    def text(self) -> str:
        """All lines."""
        return "\n".join(self._lines) + "\n"
