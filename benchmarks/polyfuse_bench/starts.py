"""Cold and warm starts: the first call in a fresh process, with empty caches and with those it filled."""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polyfuse_bench.backends import cache_environment
from polyfuse_bench.child import ChildFailed, run_child
from polyfuse_bench.compile_time import keep_byte_code
from polyfuse_bench.turns import run_together

__all__ = ["start_rows"]

_Task = Mapping[str, Any]


@dataclass
class _Starts:
    """What was measured of one target."""

    task: _Task
    cold: dict[str, list[float]] = field(default_factory=dict)
    warm: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        return {
            "cold": {name: statistics.median(values) for name, values in self.cold.items()},
            "warm": {name: statistics.median(values) for name, values in self.warm.items()},
            "cold_samples": self.cold,
            "warm_samples": self.warm,
            "failures": self.failures,
        }


def start_rows(
    tasks: Sequence[_Task], backends: Sequence[str], repeats: int, together: int = 1
) -> Iterator[dict[str, Any]]:
    """The figures of each task: seconds by backend, with `"cold"` and `"warm"`, and what failed.

    With `together`, so many processes load torch and build their models side by side; then they are timed
    one by one, and those for the warm starts after them.
    """
    keep_byte_code()
    count = max(1, together // max(1, len(backends)))
    for first in range(0, len(tasks), count):
        found = [_Starts(task) for task in tasks[first : first + count]]
        for _ in range(repeats):
            _start_all([(starts, name) for starts in found for name in backends], together)
        yield from (starts.figures() for starts in found)


def _start_all(pairs: Sequence[tuple[_Starts, str]], together: int) -> None:
    """One cold and one warm start of each pair of a target and a backend."""
    with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as name:
        folders = {number: Path(name) / str(number) for number in range(len(pairs))}
        order = ("cold", "warm")
        if together > 1:
            for age in order:
                calls = [functools.partial(_start, *pairs[n], age, folder) for n, folder in folders.items()]
                list(run_together(calls))
        else:
            for number, folder in folders.items():
                for age in order:
                    _start(*pairs[number], age, folder)


def _start(starts: _Starts, backend: str, age: str, folder: Path) -> None:
    if backend in starts.failures:
        return
    try:
        answer = run_child({**starts.task, "backend": backend}, environment=cache_environment(folder))
    except ChildFailed as failure:
        starts.failures[backend] = str(failure)
        return
    samples = starts.cold if age == "cold" else starts.warm
    samples.setdefault(backend, []).append(answer["first_call"])
