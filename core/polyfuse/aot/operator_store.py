"""Compiled single operators on disk: `<root>/operators/<namespace>/<device>/<operator>.json` lists them, and
`lib` beside it holds their packages.

Any number of processes may use one folder. A listing that cannot be read is empty, and a row whose package is
gone is a miss: it is compiled again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from polyfuse.base.digest import digest
from polyfuse.base.files import locked
from polyfuse.cache.records import read_record, write_record


@dataclass(frozen=True)
class Row:
    """What is known of one kind of call.

    Attributes:
        file: the package's name; empty where there is none.
        refusal: why there is none.
    """

    file: str
    refusal: str = ""


class OperatorFolder:
    """The compiled forms of one operator on one type of device."""

    def __init__(self, root: Path, operator: str, device_type: str, lock_timeout: float = 600.0) -> None:
        space, _, name = operator.partition(".")
        self.folder = root / "operators" / space / device_type
        self._listing = self.folder / f"{name}.json"
        self._lock = self.folder / f"{name}.lock"
        self._timeout = lock_timeout
        self._operator = operator

    def find(self, call: str) -> Row | None:
        """What is known of a kind of call, by its text; a package that is gone is unknown."""
        row = self._rows().get(call)
        return row if row is not None and (row.refusal or self.path(row).exists()) else None

    def path(self, row: Row) -> Path:
        """Where the package of a row lies."""
        return self.folder / "lib" / row.file

    def add(self, call: str, make: Callable[[Path], str]) -> Row:
        """What is known of a kind of call; if nothing is, `make` writes a package to the path that it gets,
        or returns why it does not. Another process that asks meanwhile waits for it.

        Raises:
            CacheError: another process holds the lock for too long.
        """
        with locked(self._lock, self._timeout):
            found = self.find(call)
            if found is not None:
                return found
            name = f"{digest(self._operator, call)}.pf"
            refusal = make(self.folder / "lib" / name)
            row = Row("" if refusal else name, refusal)
            rows = {key: vars(old) for key, old in self._rows().items()}
            write_record(self._listing, {**rows, call: vars(row)})
            return row

    def discard(self, row: Row) -> None:
        """Remove a package that does not load; the next look-up misses."""
        if row.file:
            self.path(row).unlink(missing_ok=True)

    def _rows(self) -> Mapping[str, Row]:
        try:
            found = {call: Row(**row) for call, row in read_record(self._listing).items()}  # type: ignore[arg-type]
        except TypeError:
            return {}
        # a name from a file must not lead elsewhere
        return {call: row for call, row in found.items() if row.file == os.path.basename(row.file)}
