"""What is remembered of kernels on this machine: those that agreed with the interpreter, and those barred.

Both are stored in the cache folder, beside the kernels, under addresses that hold all that they depend on:
the built kernel's own address (its text, backend, compiler), the device's facts, and the representation that
it was generated from.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from polyfuse.base.digest import digest, stable_json
from polyfuse.base.log import warn_once
from polyfuse.cache.records import read_record, write_record

FORMAT = 1
"""Raised whenever kernels are looked at more closely than before: what agreed then is checked again."""


_TOO_MANY = 2
"""So many barred configurations of one kernel tell that its backend has the kernel wrong."""


class Records:
    """The records of one cache folder. Safe to use from several threads and processes.

    Where the folder cannot be written, this process alone remembers.
    """

    def __init__(self, root: Path) -> None:
        self._agreed = root / "checked"
        self._barred = root / "barred"
        self._known: dict[str, set[str]] = {}
        self._bars: dict[str, Mapping[str, object]] | None = None
        self._lock = threading.Lock()

    def key(self, address: str, machine: Mapping[str, str], kernel: str) -> str:
        """The address of a kernel's agreement; `kernel` is the digest of its representation."""
        return digest("checked", str(FORMAT), address, stable_json(dict(machine)), kernel)

    def bar_key(self, address: str, machine: Mapping[str, str]) -> str:
        """The address under which a built kernel is barred on a machine."""
        return digest("barred", address, stable_json(dict(machine)))

    def agreed(self, key: str, variant: str) -> bool:
        """Whether a kernel agreed, launched with operands of this kind."""
        with self._lock:
            if key not in self._known:
                found = read_record(self._path(key)).get("agreed")
                self._known[key] = {str(v) for v in found} if isinstance(found, list) else set()
            return variant in self._known[key]

    def agree(self, key: str, variant: str, name: str) -> None:
        """Remember that a kernel agreed."""
        if self.agreed(key, variant):
            return
        with self._lock:
            self._known[key].add(variant)
            content = {"kernel": name, "agreed": sorted(self._known[key])}
        self._write(self._path(key), content)

    def barred(self, key: str, subject: str) -> str:
        """Why a kernel must not be used here; empty if it may be.

        Args:
            key: of the built kernel.
            subject: its backend and representation. Where several configurations of one are barred, all are.
        """
        with self._lock:
            bars = self._read_bars()
            if key in bars:
                return str(bars[key].get("why", "")) or "it is barred"
            alike = [about for about in bars.values() if about.get("subject") == subject]
            if len(alike) < _TOO_MANY:
                return ""
            return (
                f"{len(alike)} of its configurations are barred, the last one because {alike[-1].get('why')}"
            )

    @property
    def any_barred(self) -> bool:
        """Whether anything at all is barred."""
        with self._lock:
            return bool(self._read_bars())

    def bar(self, key: str, why: str, about: Mapping[str, str], keep: bool = True) -> None:
        """Never use a kernel again on this machine; without `keep`, in this process."""
        content = {**about, "why": why}
        with self._lock:
            self._read_bars()[key] = content
        if keep:
            self._write(self._barred / f"{key}.json", content)

    def _read_bars(self) -> dict[str, Mapping[str, object]]:
        if self._bars is None:
            # nearly always there is no such folder
            self._bars = {path.stem: read_record(path) for path in sorted(self._barred.glob("*.json"))}
        return self._bars

    def _path(self, key: str) -> Path:
        return self._agreed / key[:2] / f"{key}.json"

    def _write(self, path: Path, content: Mapping[str, object]) -> None:
        try:
            write_record(path, content)
        except OSError as error:
            warn_once(
                "checking",
                f"results of checks cannot be written to {path.parent} ({error}); only this process has them:"
                " free space, or name another folder with the option `cache_dir`",
            )


_OPEN: dict[Path, Records] = {}
_LOCK = threading.Lock()


def records_in(root: Path) -> Records:
    """The records of a cache folder, which all sessions of a process share."""
    with _LOCK:
        if root not in _OPEN:
            _OPEN[root] = Records(root)
        return _OPEN[root]
