"""Seconds by stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from polyfuse.compiler.reports.progress import enter_stage


class Clock:
    """Counts the seconds of stages, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count what happens inside to one stage."""
        enter_stage(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())
