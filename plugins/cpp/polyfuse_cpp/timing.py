"""How kernels are timed: with caches as a model finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse.plugin import HostTimer, Timer
from polyfuse.plugin.timing import cache_bytes

CACHES: Final = ("cold", "warm", "both")
"""Values of the option `cpp.caches`."""


def timer_for(settings: Settings) -> Timer:
    """The timer that the option `cpp.caches` names.

    Raises:
        InvalidOptionError: it names none.
    """
    named = str(settings.plugin_option("cpp", "caches", "") or "cold")
    if named not in CACHES:
        raise InvalidOptionError(f"option `cpp.caches` is {named!r}", f"use one of {', '.join(CACHES)}")
    cold = HostTimer(cold_bytes=3 * cache_bytes() // 2)
    return {"cold": cold, "warm": HostTimer(), "both": ColdAndWarm(cold)}[named]


class ColdAndWarm(Timer):
    """The mean of a launch whose operands are in no cache, and of one that finds there what the one before
    left: as kernels of a model whose tensors are in part just made.

    Args:
        cold: times the first.
    """

    def __init__(self, cold: Timer) -> None:
        self.cold_bytes = cold.cold_bytes
        self._cold = cold
        self._warm = HostTimer()

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        """Return the mean of the two."""
        launches[0]()
        return (self._warm.milliseconds(launches[:1]) + self._cold.milliseconds(launches)) / 2
