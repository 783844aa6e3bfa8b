"""Which caches kernels of this backend are timed with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from polyfuse.base.settings import Settings
from polyfuse.plugin import HostTimer, PluginManager, Timer
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.timing import ColdAndWarm, timer_for


def settings(caches: str) -> Settings:
    return Settings(plugin_options=(("cpp.caches", caches),))


@pytest.mark.parametrize(("caches", "cold"), [("", True), ("cold", True), ("warm", False), ("both", True)])
def test_the_option_says_whether_operands_are_in_a_cache(caches, cold):
    assert bool(PluginManager(settings(caches)).timer("cpp", "cpu").cold_bytes) == cold


def test_a_value_that_is_none_is_named(warnings_seen):
    timer = PluginManager(settings("tepid")).timer("cpp", "cpu")
    assert isinstance(timer, HostTimer) and timer.cold_bytes
    (text,) = warnings_seen()
    assert "`cpp.caches` is 'tepid'" in text and "cold, warm, both" in text


class Fixed(Timer):
    cold_bytes = 100

    def milliseconds(self, launches: Sequence[Callable[[], object]]) -> float:
        self.count = len(launches)
        return 1000.0


def test_both_is_the_mean_of_cold_sets_and_of_one_warm_set():
    fixed = Fixed()
    timer, seen = ColdAndWarm(fixed), [0, 0, 0]

    def launch(number: int) -> Callable[[], object]:
        return lambda: seen.__setitem__(number, seen[number] + 1)

    found = timer.milliseconds([launch(number) for number in range(3)])
    assert 500 <= found < 600 and timer.cold_bytes == 100 and fixed.count == 3
    assert seen[0] > 3 and seen[1:] == [0, 0], "the warm launches are of one set"


def test_timings_of_one_kind_are_not_taken_for_those_of_another():
    machines = [CppBackend(settings(caches)).machine() for caches in ("", "cold", "warm", "both")]
    assert machines[0] == machines[1] and len({str(found) for found in machines}) == 3
    assert isinstance(timer_for(settings("both")), ColdAndWarm)
