"""The parts of the user's source files that kernels come from."""

from __future__ import annotations

import linecache
import re
from typing import Any

_FRAME = re.compile(r'^File "(?P<path>.*)", line (?P<line>\d+), in (?P<function>[^:]*)(?:: (?P<code>.*))?$')
_WHOLE, _AROUND = 400, 12
"""Files of up to so many lines are included whole; of longer ones, so many lines around each one named."""


class SourceTable:
    """Lines of the model, each once, and the text around them."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._at: dict[str, int] = {}
        self._files: dict[str, int] = {}

    def add(self, source: str) -> int:
        """The number of a line of the model, as `Origin.source` names it."""
        if source not in self._at:
            self._at[source] = len(self._rows)
            self._rows.append(self._row(source))
        return self._at[source]

    def number(self, path: str, line: int, function: str = "") -> int:
        """The number of a line of a file."""
        code = linecache.getline(path, line).strip()
        return self.add(f'File "{path}", line {line}, in {function}: {code}')

    def _row(self, source: str) -> dict[str, Any]:
        found = _FRAME.match(source)
        if found is None:
            return {"file": None, "line": 0, "function": "", "code": source}
        file = self._files.setdefault(found["path"], len(self._files))
        return {
            "file": file,
            "line": int(found["line"]),
            "function": found["function"],
            "code": found["code"] or "",
        }

    def rows(self) -> list[dict[str, Any]]:
        """All lines, in the order of their numbers."""
        return self._rows

    def files(self) -> list[dict[str, Any]]:
        """Of each file, its path and the chunks of its text as (first line, text)."""
        wanted: dict[int, set[int]] = {number: set() for number in self._files.values()}
        for row in self._rows:
            if row["file"] is not None:
                wanted[row["file"]].add(row["line"])
        return [{"path": path, "parts": _parts(path, wanted[n])} for path, n in self._files.items()]


def _parts(path: str, wanted: set[int]) -> list[list[Any]]:
    lines = [line.rstrip("\n") for line in linecache.getlines(path)]
    if len(lines) <= _WHOLE:
        return [[1, "\n".join(lines)]] if lines else []
    numbers = sorted(
        {n for line in wanted for n in range(line - _AROUND, line + _AROUND + 1) if 1 <= n <= len(lines)}
    )
    parts: list[list[Any]] = []
    for number in numbers:
        if parts and parts[-1][0] + len(parts[-1][1]) == number:
            parts[-1][1].append(lines[number - 1])
        else:
            parts.append([number, [lines[number - 1]]])
    return [[start, "\n".join(text)] for start, text in parts]
