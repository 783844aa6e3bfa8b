"""What a user sees of races: a live table while they last, a final one, and a log for tools."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from polyfuse.base.log import warn_once
from polyfuse.base.settings import Settings
from polyfuse.cache.timings import FAILED, Measured

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

__all__ = ["ProgressTable", "append_log", "row_of", "table_of"]


# Seconds before anything is shown: short races need no table.
_PATIENCE = 2.0
_REFRESH = 0.2
# Seconds between lines where tables cannot be drawn anew.
_LINES = 10.0
# Rows of the final table.
_SHOWN = 40


class ProgressTable:
    """The table of a few problems that are raced together.

    Args:
        settings: say whether it is shown at all.
        limit: seconds that are left for them; 0: no limit.
    """

    def __init__(self, settings: Settings, limit: float = 0.0) -> None:
        self._limit = limit
        self._begun = self._round_begun = time.monotonic()
        self._round = self._problems = self._at = 0
        self._done: list[tuple[str, Measured]] = []
        self._about = "building candidates"
        self._candidates = self._built = 0
        self._times: dict[str, float] = {}
        self._live: Live | None = None
        self._drawn = self._told = 0.0
        wanted = settings.progress
        self._is_shown = wanted == "on" or (wanted == "auto" and sys.stderr.isatty())

    def begin_round(self, problems: int) -> None:
        """Begin a round of so many problems, whose candidates are built first."""
        self._round += 1
        self._problems, self._at = problems, 0
        self._about, self._candidates, self._times = "building candidates", 0, {}
        self._draw()

    def building(self, built: int, kernels: int) -> None:
        """Hear how many kernels of how many are built for this round."""
        self._built, self._candidates = built, kernels
        self._round_begun = time.monotonic()
        self._draw()

    def problem(self, about: str, candidates: int) -> None:
        """Turn to the next problem, for which so many are timed."""
        self._at += 1
        self._about, self._candidates, self._times = about, candidates, {}
        self._built = 0
        self._draw()

    def candidate(self, name: str, milliseconds: float) -> None:
        """Hear of a candidate's time."""
        self._times[name] = milliseconds
        self._draw()

    def done(self, about: str, measured: Measured) -> None:
        """Hear of an answer."""
        self._done.append((about, measured))

    def close(self) -> None:
        """Take the live table away and, if it was shown, print the final one."""
        if self._live is None:
            return
        self._live.stop()
        seconds = time.monotonic() - self._begun
        self._live.console.print(table_of(self._done[-_SHOWN:], f"tuned in {seconds:.1f} s"))
        self._live = None

    def _draw(self) -> None:
        now = time.monotonic()
        if not self._is_shown or now - self._begun < _PATIENCE or now - self._drawn < _REFRESH:
            return
        self._drawn = now
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            # no thread of its own: it would be in the way of what is timed
            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self._live.start()
        if self._live.console.is_terminal:
            self._live.update(self._table(), refresh=True)
        elif now - self._told >= _LINES:
            self._told = now
            self._live.console.print(f"{self._title()}: {self._about} {self._count()}".rstrip())

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(title=self._title())
        table.add_column("problem")
        table.add_column("candidates", justify="right")
        table.add_column("best so far")
        table.add_row(self._about, self._count(), _best_text(self._times))
        return table

    def _title(self) -> str:
        place = f"problem {self._at} of {self._problems}" if self._at else f"{self._problems} problems"
        return f"tuning, round {self._round}: {place}, {self._left()}"

    def _count(self) -> str:
        return f"{self._built + len(self._times)} of {self._candidates}" if self._candidates else ""

    def _left(self) -> str:
        now = time.monotonic()
        if self._at > 1:
            left = (now - self._round_begun) / (self._at - 1) * (self._problems - self._at + 1)
            if self._limit:
                left = min(left, max(0.0, self._limit - (now - self._begun)))
            return f"about {left:.0f} s left"
        return f"{now - self._begun:.0f} s so far"


def row_of(about: str, measured: Measured) -> tuple[str, str, str, str, str]:
    """A line of a table: the problem, what won, its milliseconds, how many times these the next one takes,
    how many there were. The next one is the best of somebody else, where not all are by one.
    """
    timed = sorted((ms, name) for name, ms in measured.milliseconds.items() if ms != FAILED)
    lost = len(measured.milliseconds) - len(timed)
    count = f"{len(timed)}" + (f" + {lost} failed" if lost else "")
    if measured.best is None:
        return about, "undecided", "", "", count
    best = measured.milliseconds[measured.best]
    alike = [(ms, name or "first guess") for ms, name in timed if name != measured.best]
    others = [(ms, _by(name)) for ms, name in timed if _by(name) != _by(measured.best)]
    after = (others or alike)[:1]
    next_best = f"{after[0][0] / best:.2f} x {after[0][1]}" if after and best else ""
    return about, measured.best or "first guess", f"{best:.4f}", next_best, count


def _by(name: str) -> str:
    """Who stands behind a name; empty where it is a configuration alone."""
    first = name.partition(" ")[0]
    return "" if "=" in first else first


def table_of(done: Iterable[tuple[str, Measured]], title: str = "") -> Table:
    """Answers, with what they are about, as a table."""
    from rich.table import Table

    table = Table(title=title or None, show_lines=True)
    for name, justify in (("problem", "left"), ("fastest", "left"), ("ms", "right"), ("next", "left")):
        table.add_column(name, justify=justify, no_wrap=name == "ms")  # type: ignore[arg-type]
    table.add_column("candidates", justify="right")
    for about, measured in done:
        table.add_row(*row_of(about, measured))
    return table


def append_log(path: str, key: str, measured: Measured, seconds: float) -> None:
    """Add one answer to a log with an object a line. A file that cannot be written costs the log, nothing
    else.
    """
    line = {
        "problem": measured.about,
        "key": key,
        "best": measured.best,
        "milliseconds": {name: None if ms == FAILED else ms for name, ms in measured.milliseconds.items()},
        "seconds": round(seconds, 3),
    }
    try:
        place = Path(path).expanduser()
        place.parent.mkdir(parents=True, exist_ok=True)
        # one write at the end of the file: lines of several processes do not mix
        descriptor = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        warn_once(
            "select", f"the log of races {path} cannot be written ({error}); name another in `tune_log`"
        )


def _best_text(times: dict[str, float]) -> str:
    best = min(times, key=lambda name: times[name], default=None)
    if best is None or times[best] == FAILED:
        return ""
    return f"{best or 'first guess'} {times[best]:.4f} ms"
