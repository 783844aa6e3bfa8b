"""A plugin's timer, guarded: a fault of it is named once, and launches are timed all the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from polyfuse.base.errors import BackendError
from polyfuse.base.text import brief
from polyfuse.plugin.hooks.faults import is_fault, wrong_answer
from polyfuse.plugin.timing import Timer


class GuardedTimer(Timer):
    """A plugin's timer. Where it raises although launches do not, or answers no time, it is named once, and
    another one is used from then on.

    Args:
        timer: the plugin's.
        otherwise: makes the other one.
        report: called with the error.
        strict: whether the error is raised instead.
    """

    def __init__(
        self,
        timer: Timer,
        otherwise: Callable[[], Timer],
        report: Callable[[BaseException], None],
        strict: bool,
    ) -> None:
        self.cold_bytes, self.one_by_one = timer.cold_bytes, timer.one_by_one
        self._timer = timer
        self._otherwise = otherwise
        self._report = report
        self._strict = strict
        self._failed = False

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the milliseconds of one launch.

        Raises:
            BackendError: it fails, or wants to end the process.
        """
        try:
            try:
                found = self._timer.milliseconds(launches)
            except Exception:
                raise
            except BaseException as error:
                if not is_fault(error):
                    raise
                raise BackendError(f"it wanted to end the process ({brief(error)})") from error
            if isinstance(found, bool) or not isinstance(found, (int, float)):
                raise wrong_answer(found, "time")
            if not (math.isfinite(found) and found >= 0):
                raise ValueError(f"{found} milliseconds is no time")
            return float(found)
        except Exception as error:
            if self._strict or self._failed:
                raise
            launches[0]()  # if it raises too, it is no fault of the timer
            self._failed, self._timer = True, self._otherwise()
            self._report(error)
            return self._timer.milliseconds(launches)
