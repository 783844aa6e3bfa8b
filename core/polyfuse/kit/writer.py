"""Indented text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Writer:
    """Collects lines, each with its indentation; `step` is one level of it."""

    def __init__(self, step: str = "    ") -> None:
        self._step = step
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        """Add one line."""
        self._lines.append(self._step * self._depth + text)

    @contextmanager
    def indented(self, levels: int = 1) -> Iterator[None]:
        """Indent what is written inside."""
        self._depth += levels
        yield
        self._depth -= levels

    @contextmanager
    def block(self, head: str = "", tail: str = "}") -> Iterator[None]:
        """Write ``head {``, then indented what is written inside, then the closing brace."""
        self.line(f"{head} {{" if head else "{")
        with self.indented():
            yield
        self.line(tail)

    @contextmanager
    def detached(self) -> Iterator[list[str]]:
        """Collect what is written inside in a list of its own, to be inserted by `add`."""
        outer, self._lines = self._lines, []
        yield self._lines
        self._lines = outer

    def add(self, lines: Iterable[str]) -> None:
        """Add lines that have their indentation."""
        self._lines.extend(lines)

    def text(self) -> str:
        """All lines."""
        return "\n".join(self._lines) + "\n"
