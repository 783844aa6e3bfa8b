"""Indented text, and texts in texts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Writer", "quoted"]


class Writer:
    """Collects lines; `block` indents what is written inside it and closes the brace."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def line(self, text: str) -> None:
        """Add one line."""
        self._lines.append("  " * self._depth + text)

    @contextmanager
    def block(self, head: str = "", tail: str = "}") -> Iterator[None]:
        """Write ``head {``, then what the body writes, then the closing brace."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(tail)

    def text(self) -> str:
        """All lines."""
        return "\n".join(self._lines) + "\n"


def quoted(text: str) -> str:
    """A text as a C string."""
    plain = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{"".join(plain)}"'
