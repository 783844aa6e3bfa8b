"""Trials on disk: what each candidate for a problem took on a machine, so that nothing is timed twice.

One small file for each problem and machine. It holds measurements only: no built code, which is the kernel
store's business, and no decision, which follows from the trials.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from polyfuse.base.code import version
from polyfuse.base.config import Config
from polyfuse.base.digest import digest, stable_json
from polyfuse.base.log import get_logger
from polyfuse.cache.records import parse_record, read_record, record_text, write_record

if TYPE_CHECKING:
    from polyfuse.cache.sharing import Sharing

_log = get_logger("cache")

FAILED: Final = math.inf
"""The time of a candidate that could not be built, did not run, or computed something else."""

# Raised when measurements of earlier versions mean something else.
_FORMAT: Final = 4
# What is faster by less than this is no better than the baseline.
_GAIN: Final = 0.98
# No candidate takes longer, in milliseconds, and no code generator offers larger numbers, or more of them.
_LONGEST: Final = 1e7
_LARGEST: Final = 1 << 16
_MOST_VALUES: Final = 64


@dataclass(frozen=True)
class Candidate:
    """One way to do something.

    Attributes:
        implementation: the name of a backend, or of anything else that does it, such as `library`.
        config: how that is configured; None where it has nothing to choose, or its first guess is meant.
    """

    implementation: str
    config: Config | None = None

    def __str__(self) -> str:
        return f"{self.implementation} {self.config or ''}".strip()


@dataclass(frozen=True)
class Trial:
    """One candidate, timed.

    Attributes:
        milliseconds: of one run; `FAILED` where there was none that counts.
        fault: why, in words.
    """

    candidate: Candidate
    milliseconds: float = FAILED
    fault: str = ""


@dataclass(frozen=True)
class Record:
    """What was measured of one problem.

    Attributes:
        about: the problem, for people.
        trials: each candidate once.
        baseline: the implementation that is chosen unless another is faster by more than the noise; empty:
            none.
        complete: whether the search was over; if not, it goes on with what is known.
    """

    about: str = ""
    trials: tuple[Trial, ...] = ()
    baseline: str = ""
    complete: bool = False

    @property
    def ranked(self) -> list[Trial]:
        """Those that ran, the fastest first."""
        return sorted(
            (t for t in self.trials if t.milliseconds != FAILED),
            key=lambda t: (t.milliseconds, str(t.candidate)),
        )

    @property
    def best(self) -> Trial | None:
        """The one to use; None where the search is not over, or nothing ran."""
        ranked = self.ranked
        if not self.complete or not ranked:
            return None
        baseline = next((t for t in ranked if t.candidate.implementation == self.baseline), None)
        if baseline is not None and ranked[0].milliseconds > _GAIN * baseline.milliseconds:
            return baseline
        return ranked[0]

    def of(self, candidate: Candidate) -> Trial | None:
        """The trial of one candidate."""
        return next((trial for trial in self.trials if trial.candidate == candidate), None)


class TimingStore:
    """Records under one root folder.

    Args:
        sharing: returns what exchanges records whose search is over with other machines; None: nothing does.
    """

    def __init__(self, root: Path, sharing: Callable[[], Sharing | None] = lambda: None) -> None:
        self._sharing = sharing
        self._asked: set[tuple[Sharing, str]] = set()
        self._folder = root / "timings"
        self._locks = root / "locks"

    def read(self, key: str) -> Record:
        """Return what is known; nothing, where a file is missing or damaged. Trials whose values cannot have
        been measured are left out.
        """
        found = _parsed(read_record(self._path(key)))
        sharing = None if found.complete else self._sharing()
        if sharing is None or (sharing, key) in self._asked:
            return found
        self._asked.add((sharing, key))
        shared = _parsed(parse_record(sharing.fetch_record(f"timings/{key}")))
        if not shared.complete:
            return found
        self._store(key, shared)
        return shared

    def write(self, key: str, record: Record) -> None:
        """Store a record. A folder that cannot be written costs the memory, nothing else."""
        self._store(key, record)
        sharing = self._sharing() if record.complete else None
        if sharing is not None:
            sharing.give_record(f"timings/{key}", record_text(_plain(record)))

    def _store(self, key: str, record: Record) -> None:
        with contextlib.suppress(OSError):
            write_record(self._path(key), _plain(record))

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

    def entries(self) -> Iterator[tuple[str, Record]]:
        """All that is known, by key."""
        for path in sorted(self._folder.glob("*/*.json")):
            yield path.stem, self.read(path.stem)

    def forget(self, key: str) -> None:
        """Drop what is known of one problem."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def _parsed(stored: Any) -> Record:
    try:
        trials = tuple(trial for trial in map(_trial, stored["trials"]) if _is_possible(trial))
        return Record(str(stored["about"]), trials, str(stored["baseline"]), stored["complete"] is True)
    except (ValueError, TypeError, KeyError, AttributeError):
        return Record()


def _plain(record: Record) -> dict[str, object]:
    return {
        "about": record.about,
        "baseline": record.baseline,
        "complete": record.complete,
        "trials": [_stored(trial) for trial in record.trials],
    }


def _stored(trial: Trial) -> dict[str, object]:
    config, taken = trial.candidate.config, trial.milliseconds
    return {
        "implementation": trial.candidate.implementation,
        "config": None if config is None else [list(pair) for pair in config.values],
        "milliseconds": None if taken == FAILED else taken,
        "fault": trial.fault,
    }


def _trial(stored: Any) -> Trial:
    values, taken = stored["config"], stored["milliseconds"]
    config = None if values is None else Config(tuple((str(name), int(value)) for name, value in values))
    candidate = Candidate(str(stored["implementation"]), config)
    return Trial(candidate, FAILED if taken is None else float(taken), str(stored["fault"]))


def _is_possible(trial: Trial) -> bool:
    """Whether a trial can have been measured: what was not may hang a code generator, or always win."""
    config = trial.candidate.config
    values = () if config is None else config.values
    taken = trial.milliseconds
    return (
        len(values) <= _MOST_VALUES
        and all(abs(value) <= _LARGEST for _, value in values)
        and (taken == FAILED or 0 < taken <= _LONGEST)
    )


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
