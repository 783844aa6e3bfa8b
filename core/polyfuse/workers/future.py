"""Kernels that are being built."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.process import ForkedLock
from polyfuse.cache import Located

if TYPE_CHECKING:
    from polyfuse.plugin import Launchable

# Where a built kernel lies, or why there is none.
Location = Located | PolyfuseError


class BuildFuture:
    """The kernels of one `BuildPool.submit`, by `Source.key`. Work is under way from the start; the methods
    wait for it, and do their part once however often they are called.

    Args:
        units: what is waited for, by the keys of kernels.
        load: the kernel that was built, or the error.
        again: starts to build the same in a forked process; None where nothing is under way.
    """

    def __init__(
        self,
        units: Mapping[str, Future[Mapping[str, Location]]],
        load: Callable[[str, Location], Launchable | PolyfuseError],
        again: Callable[[], BuildFuture] | None = None,
    ) -> None:
        self._given = units
        self._load = load
        self._again = again
        self._process_id = os.getpid()
        self._outcomes: dict[str, Launchable | PolyfuseError] = {}
        self._lock = ForkedLock()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the kernels asked for, without repetition, in the order given."""
        return tuple(self._given)

    @property
    def _units(self) -> Mapping[str, Future[Mapping[str, Location]]]:
        """What is waited for. Threads that build do not survive a fork: a child builds what is not done."""
        if self._process_id != os.getpid():
            if self._again is not None and not all(future.done() for future in self._given.values()):
                self._given = self._again()._given
            self._process_id = os.getpid()
        return self._given

    def done(self) -> bool:
        """Whether nothing is left to wait for."""
        return all(future.done() for future in self._units.values())

    def left(self, seconds: float = 0.0) -> int:
        """Wait until all are built, but not longer than so many seconds; return how many are not."""
        wait(set(self._units.values()), timeout=seconds)
        return sum(not future.done() for future in self._units.values())

    def locations(self) -> Mapping[str, Location]:
        """Wait for the builds, and return for each kernel where it lies, or the error. Loads nothing."""
        return {key: future.result()[key] for key, future in self._units.items()}

    def outcomes(self) -> Mapping[str, Launchable | PolyfuseError]:
        """Wait, load, and return for each kernel either something to call or the error. Never raises them."""
        with self._lock:
            for key, location in self.locations().items():
                if key not in self._outcomes:
                    self._outcomes[key] = self._load(key, location)
            return dict(self._outcomes)

    def result(self) -> Mapping[str, Launchable]:
        """Wait, load, and return all kernels; raises the first error there is."""
        loaded: dict[str, Launchable] = {}
        for key, outcome in self.outcomes().items():
            if isinstance(outcome, PolyfuseError):
                raise outcome
            loaded[key] = outcome
        return loaded
