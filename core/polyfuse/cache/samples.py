"""The training data of cost models: what each configuration of a backend took, for kernels of a kind on a
device.

One small file for each kernel of each search. Nothing is chosen by these numbers alone: they say which
configurations of other kernels are worth building (`autotune/cost_model.py`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from polyfuse.cache.records import read_record, write_record
from polyfuse.cache.timings import FAILED

# So many kernels of a kind are read: more add little, and each is a file.
_MOST: Final = 300


@dataclass(frozen=True)
class Sample:
    """One configuration in one found.

    Attributes:
        config: its names and values, sorted.
        estimate: what its backend guessed, in any unit; None: nothing.
        milliseconds: what it took; `FAILED` if it failed.
    """

    config: tuple[tuple[str, int], ...]
    estimate: float | None
    milliseconds: float


@dataclass(frozen=True)
class KernelSamples:
    """The configurations of one kernel that were timed side by side.

    Attributes:
        about: backend and kind of kernel, for people.
        sizes: of the kernel, as many for each kernel of a kind.
        samples: in the order in which they were offered.
    """

    about: str
    sizes: tuple[int, ...]
    samples: tuple[Sample, ...]


class SampleStore:
    """Samples under one root folder, by group: a kind of kernel of one backend on one device."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "samples"

    @property
    def empty(self) -> bool:
        """Whether there is nothing yet."""
        return not self._folder.is_dir()

    def groups(self) -> Iterator[str]:
        """The groups of which there are samples."""
        return (path.name for path in sorted(self._folder.glob("*")) if path.is_dir())

    def read(self, group: str) -> tuple[KernelSamples, ...]:
        """What is known of a group, in an order that does not depend on when they were taken. A file that is
        damaged is as if it were not there.
        """
        paths = sorted((self._folder / group).glob("*.json"))[:_MOST]
        parsed = (_parsed(read_record(path)) for path in paths)
        return tuple(one for one in parsed if one is not None)

    def add(self, group: str, key: str, position: int, found: KernelSamples) -> None:
        """Remember.

        Args:
            key: the task's, as its trials are stored.
            position: of the kernel among those of the task, from 0 on.
        """
        rows = [
            [dict(s.config), s.estimate, None if s.milliseconds == FAILED else s.milliseconds]
            for s in found.samples
        ]
        stored = {"about": found.about, "sizes": list(found.sizes), "rows": rows}
        with contextlib.suppress(OSError):
            write_record(self._folder / group / f"{key}-{position}.json", stored)

    def forget(self, key: str) -> None:
        """Drop the samples of one task."""
        for path in self._folder.glob(f"*/{key}-*.json"):
            path.unlink(missing_ok=True)


def _parsed(stored: Any) -> KernelSamples | None:
    """What a record holds; None where it is not what `add` writes."""
    try:
        samples = tuple(
            Sample(
                tuple(sorted((str(name), _integer(value)) for name, value in config.items())),
                None if estimate is None else _time(estimate),
                FAILED if milliseconds is None else _time(milliseconds),
            )
            for config, estimate, milliseconds in stored["rows"]
        )
        return KernelSamples(str(stored["about"]), tuple(_integer(n) for n in stored["sizes"]), samples)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _integer(value: object) -> int:
    if type(value) is not int or abs(value) >= 1 << 62:
        raise ValueError(f"{value!r} is no size")
    return value


def _time(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise ValueError(f"{value!r} is no time")
    return float(value)  # type: ignore[arg-type]
