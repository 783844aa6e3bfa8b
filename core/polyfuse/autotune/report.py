"""What a user sees of autotuning: a live table while it lasts, a final one, and a log for tools."""

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
from polyfuse.cache.timings import FAILED, Record

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


# Seconds before anything is shown: short searches need no table.
_PATIENCE = 2.0
_REFRESH = 0.2
# Seconds between lines where tables cannot be drawn anew.
_LINES = 10.0
# Rows of the final table.
_SHOWN = 40
# As many of the slower ones are named as people read.
_NAMED = 10


class ProgressTable:
    """The table of a few problems that are timed together.

    Args:
        settings: say whether it is shown at all.
        limit: seconds that are left for them; 0: no limit.
    """

    def __init__(self, settings: Settings, limit: float = 0.0) -> None:
        self._limit = limit
        self._begun = self._round_begun = time.monotonic()
        self._round = self._problems = self._at = 0
        self._done: list[Record] = []
        self._about = "building candidates"
        self._candidates = self._built = 0
        self._times: dict[str, float] = {}
        self._live: Live | None = None
        self._drawn = self._printed = 0.0
        wanted = settings.progress
        self._is_shown = wanted == "on" or (wanted == "auto" and sys.stderr.isatty())

    def begin_round(self, problems: int) -> None:
        """Begin a round of so many problems, whose candidates are built first."""
        self._round += 1
        self._problems, self._at = problems, 0
        self._about, self._candidates, self._times = "building candidates", 0, {}
        self._draw()

    def building(self, built: int, kernels: int) -> None:
        """Show how many kernels of how many are built for this round."""
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
        """Show a candidate's time."""
        self._times[name] = milliseconds
        self._draw()

    def done(self, record: Record) -> None:
        """Add the record of a finished search to the final table."""
        self._done.append(record)

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
        elif now - self._printed >= _LINES:
            self._printed = now
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
        progress = f"problem {self._at} of {self._problems}" if self._at else f"{self._problems} problems"
        return f"tuning, round {self._round}: {progress}, {self._left()}"

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


def gain_of(record: Record) -> tuple[float, str]:
    """How many times faster the best of a record is than what would run without tuning, and what that is: the
    baseline, such as the library, else the first guess. 0 where there is no best, or nothing to compare with.
    """
    best = record.best
    if best is None:
        return 0.0, ""
    ranked = record.ranked
    usual = next((t for t in ranked if t.candidate.implementation == record.baseline), None)
    usual = usual or next((t for t in record.trials if t.milliseconds != FAILED), None)
    if usual is None or not best.milliseconds:
        return 0.0, ""
    return usual.milliseconds / best.milliseconds, str(usual.candidate)


def lines_of(record: Record) -> tuple[str, str]:
    """A record in two lines of text: the speed-up, the time and the problem; then what is used, and what was
    tried.
    """
    best, (gain, usual) = record.best, gain_of(record)
    failed = len(record.trials) - len(record.ranked)
    tried = f"{len(record.trials)} candidates" + (f", {failed} failed" if failed else "")
    if best is None:
        return f"{'-':>7} {'-':>10}     {record.about}", f"search not over; {tried} so far"
    head = f"{f'{gain:.2f} x' if gain else '-':>7} {best.milliseconds:>10.4f} ms  {record.about}"
    instead = (
        f"{best.candidate} instead of {usual}" if gain and usual != str(best.candidate) else best.candidate
    )
    return head, f"{instead}; {tried}"


def row_of(record: Record) -> tuple[str, str, str, str, str]:
    """A line of a table: the problem, the best, its milliseconds, how many times these the next one takes,
    how many there were. The next one is that of another implementation, where there are several.
    """
    ranked, best = record.ranked, record.best
    failed = len(record.trials) - len(ranked)
    count = f"{len(ranked)}" + (f" + {failed} failed" if failed else "")
    if best is None:
        return record.about, "undecided", "", "", count
    own = best.candidate.implementation
    others = [(t, t.candidate.implementation) for t in ranked if t.candidate.implementation != own]
    alike = [(t, str(t.candidate)) for t in ranked if t is not best]
    after = (others or alike)[:1]
    taken = best.milliseconds
    next_best = f"{after[0][0].milliseconds / taken:.2f} x {after[0][1]}" if after and taken else ""
    return record.about, str(best.candidate), f"{taken:.4f}", next_best, count


def table_of(done: Iterable[Record], title: str = "") -> Table:
    """Records as a table."""
    from rich.table import Table

    table = Table(title=title or None, show_lines=True)
    table.add_column("speed-up", justify="right", no_wrap=True)
    for name, justify in (("problem", "left"), ("fastest", "left"), ("ms", "right"), ("next", "left")):
        table.add_column(name, justify=justify, no_wrap=name == "ms")  # type: ignore[arg-type]
    table.add_column("candidates", justify="right")
    for record in done:
        gain, _ = gain_of(record)
        table.add_row(f"{gain:.2f} x" if gain else "", *row_of(record))
    return table


def trials_text(record: Record) -> str:
    """The fastest of what was measured, in words."""
    ranked = record.ranked
    words = [f"{trial.candidate} {trial.milliseconds:.4f} ms" for trial in ranked[:_NAMED]]
    if len(ranked) > _NAMED:
        words.append(f"{len(ranked) - _NAMED} slower ones")
    failed = len(record.trials) - len(ranked)
    if failed:
        words.append(f"{failed} failed")
    return ", ".join(words) or "nothing could be timed"


def as_json(key: str, record: Record) -> dict[str, object]:
    """A record as plain data for tools: milliseconds by candidate, null for those that failed."""
    return {
        "problem": record.about,
        "key": key,
        "best": None if record.best is None else str(record.best.candidate),
        "speed-up": gain_of(record)[0] or None,
        "over": gain_of(record)[1],
        "milliseconds": {
            str(t.candidate): None if t.milliseconds == FAILED else t.milliseconds for t in record.trials
        },
    }


def append_log(path: str, key: str, record: Record, seconds: float) -> None:
    """Add one record to a log with an object a line. A file that cannot be written costs the log, nothing
    else.
    """
    line = {**as_json(key, record), "seconds": round(seconds, 3)}
    try:
        target = Path(path).expanduser()
        target.parent.mkdir(parents=True, exist_ok=True)
        # one write at the end of the file: lines of several processes do not mix
        descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        warn_once("autotune", f"the log {path} cannot be written ({error}); name another in `tune_log`")


def _best_text(times: dict[str, float]) -> str:
    best = min(times, key=lambda name: times[name], default=None)
    if best is None or times[best] == FAILED:
        return ""
    return f"{best} {times[best]:.4f} ms"
