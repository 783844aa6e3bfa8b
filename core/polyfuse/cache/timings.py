"""Measured candidates: what each configuration of a kernel took on a machine, so that nothing is timed twice.

One small file for each kernel and machine. It holds text and numbers only, no built code: what is remembered
of a configuration is its text, and building it again is the kernel store's business.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from polyfuse.base.digest import digest, stable_json
from polyfuse.base.files import atomic_write, read_text
from polyfuse.base.log import get_logger
from polyfuse.base.version import version

__all__ = ["FAILED", "Measured", "TimingStore", "timing_key"]

_log = get_logger("cache")

FAILED: Final = math.inf
"""The time of a candidate that could not be built, did not run, or was not good enough to be timed."""

# Raised when measurements of earlier versions mean something else.
_FORMAT: Final = 2


@dataclass(frozen=True)
class Measured:
    """What is known of one kernel.

    Attributes:
        milliseconds: time of each configuration, by its text; `FAILED` if it does not count.
        best: the configuration chosen once the search was over; None while it is not.
        about: what was measured, for people.
    """

    milliseconds: Mapping[str, float] = field(default_factory=dict)
    best: str | None = None
    about: str = ""


class TimingStore:
    """Measurements under one root folder."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "timings"
        self._locks = root / "locks"

    def read(self, key: str) -> Measured:
        """Return what is known; nothing, where a file is missing or damaged."""
        text = read_text(self._path(key))
        try:
            stored = json.loads(text) if text else {}
            times = {str(name): FAILED if ms is None else float(ms) for name, ms in stored["times"].items()}
            best, about = stored["best"], str(stored["about"])
        except (ValueError, TypeError, KeyError, AttributeError):
            return Measured()
        return Measured(times, best if best in times else None, about)

    def write(self, key: str, measured: Measured) -> None:
        """Remember. A folder that cannot be written costs the memory, nothing else."""
        times = {name: None if ms == FAILED else ms for name, ms in measured.milliseconds.items()}
        stored = {"times": times, "best": measured.best, "about": measured.about}
        try:
            atomic_write(self._path(key), stable_json(stored))
        except OSError:
            return

    @contextlib.contextmanager
    def exclusive(self, seconds: float) -> Iterator[None]:
        """Keep other processes from measuring meanwhile: each would disturb the other, and what one has
        measured, another need not. After waiting for so many seconds, go on all the same.
        """
        lock = FileLock(str(self._locks / "timings.lock"))
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=seconds)
        except (OSError, Timeout) as error:
            _log.info("measuring without the lock of other processes: %s", error)
        try:
            yield
        finally:
            lock.release()

    @property
    def empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._folder.is_dir()

    def entries(self) -> Iterator[tuple[str, Measured]]:
        """All that is known, by key."""
        for path in sorted(self._folder.glob("*/*.json")):
            yield path.stem, self.read(path.stem)

    def forget(self, key: str) -> None:
        """Drop what is known of one problem, and all notes, which may depend on it."""
        self._path(key).unlink(missing_ok=True)
        for path in self._folder.glob("*/*.note"):
            path.unlink(missing_ok=True)

    def note(self, key: str, value: object) -> None:
        """Keep plain data that follows from measurements, so that it need not be worked out again."""
        with contextlib.suppress(OSError):
            atomic_write(self._path(key).with_suffix(".note"), stable_json(value))

    def noted(self, key: str) -> object:
        """Return such data; None where there is none, or it is damaged."""
        text = read_text(self._path(key).with_suffix(".note"))
        try:
            return json.loads(text) if text else None
        except ValueError:
            return None

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def timing_key(kernel: str, backend: str, facts: Mapping[str, str], machine: Mapping[str, str]) -> str:
    """Return the address of a kernel's measurements.

    Args:
        kernel: the kernel's own address, with its example sizes.
        backend: who generates the code.
        facts: its `describe()`.
        machine: its `machine()`.
    """
    environment = {
        "format": _FORMAT,
        "polyfuse": version(),
        "backend": backend,
        "facts": dict(facts),
        "machine": dict(machine),
    }
    return digest("timing", kernel, stable_json(environment))
