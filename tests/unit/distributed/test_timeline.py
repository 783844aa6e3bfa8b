"""One rank's timeline: computing by a clock, communication by a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polyfuse.distributed.simulated import World
from polyfuse.distributed.timeline import DeviceTimeline, Timeline
from polyfuse.runtime.ranks.costs import KINDS, CollectiveCosts

PER_BYTE = 1.0
RANKS = (0, 1)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def costs(ranks: int, on_host: bool) -> CollectiveCosts:
    """A second for each byte; over hosts, ten."""
    rate = PER_BYTE if on_host else 10 * PER_BYTE
    return CollectiveCosts("", "", ranks, on_host, dict.fromkeys(KINDS, ((1, rate), (1000, 1000 * rate))))


def begun(**options: Any) -> tuple[Clock, Timeline]:
    clock = Clock()
    return clock, Timeline(costs, clock=clock, **options)


def busy(cores: float, share: float, ranks_cores: float = 0.0) -> tuple[Clock, Timeline]:
    """A rank that keeps so many cores busy while it computes, on a host with `share` ranks for each core;
    collectives keep `ranks_cores` of each rank's busy.
    """
    clock = Clock()

    def table(ranks: int, on_host: bool) -> CollectiveCosts:
        known = costs(ranks, on_host)
        cpu = {kind: tuple((n, s * ranks_cores) for n, s in rows) for kind, rows in known.seconds.items()}
        return replace(known, cpu=cpu)

    return clock, Timeline(table, clock=clock, share=share, cpu=lambda: cores * clock.now)


@pytest.mark.parametrize(
    ("cores", "share", "seconds"),
    [(1, 0, 4), (1, 0.5, 4), (1, 1, 4), (1, 2, 8), (2, 1, 8), (0, 8, 4), (0.5, 4, 8)],
)
def test_ranks_that_outnumber_the_cores_compute_more_slowly(
    cores: float, share: float, seconds: float
) -> None:
    clock, line = busy(cores, share)
    clock.now += 4
    assert line.now() == seconds
    assert line.now() == seconds


def test_collectives_and_what_is_computed_beside_them_share_cores() -> None:
    clock, line = busy(1, 1, ranks_cores=1)
    flight = line.start("all_reduce", 10, RANKS, True)
    # four seconds of each take eight of both
    clock.now += 4
    assert (line.now(), flight.done) == (8.0, 14.0)
    line.wait(flight)
    assert (flight.exposed, line.now()) == (6.0, 14.0)
    clock.now += 2
    assert line.now() == 16.0, "nothing is on its way"


def test_a_collective_that_ends_meanwhile_takes_no_cores_afterwards() -> None:
    clock, line = busy(1, 1, ranks_cores=1)
    first, second = (line.start("all_reduce", 2, RANKS, True) for _ in range(2))
    clock.now += 10
    assert (line.now(), first.done, second.done) == (14.0, 4.0, 8.0)
    line.wait(second)
    assert (second.exposed, line.now()) == (0.0, 14.0)
    third = line.start("all_reduce", 1, RANKS, True)
    assert third.done == 15.0


def test_a_collective_takes_as_long_as_the_cores_need_for_all_ranks() -> None:
    _, line = busy(1, 2, ranks_cores=1)
    assert line.start("all_reduce", 10, RANKS, True).done == 20.0


def test_enough_cores_for_both() -> None:
    clock, line = busy(1, 0.5, ranks_cores=1)
    flight = line.start("all_reduce", 10, RANKS, True)
    clock.now += 4
    line.wait(flight)
    assert (flight.exposed, line.now()) == (6.0, 10.0)


def test_what_is_computed_meanwhile_hides_a_collective() -> None:
    clock, line = begun()
    flight = line.start("all_reduce", 10, RANKS, True)
    clock.now += 4
    line.wait(flight)
    assert (flight.exposed, line.now()) == (6.0, 10.0)
    line.wait(flight)
    assert line.now() == 10.0, "it is over"


def test_the_network_does_one_after_another() -> None:
    _, line = begun()
    first, second = (line.start("all_gather", 5, RANKS, True) for _ in range(2))
    line.wait(second)
    line.wait(first)
    assert (first.exposed, second.exposed) == (0.0, 10.0)


def test_a_group_of_one_costs_nothing_and_hosts_cost_more() -> None:
    _, line = begun(per_host=2)
    assert line.start("all_reduce", 10, (3,), True).done == 0.0
    assert line.start("all_reduce", 10, (2, 3), True).done == 10.0
    assert line.start("all_reduce", 10, (1, 2), True).done == 110.0


def test_what_is_paused_takes_no_time() -> None:
    clock, line = begun()
    with line.paused():
        clock.now += 7
    assert line.now() == 0.0


class Device:
    """A device that works behind its host: `now` is when it comes to the next event, in milliseconds."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, 0

    def event(self) -> Any:
        return DeviceEvent(self)

    def synchronize(self) -> None:
        self.waits += 1

    def timeline(self) -> DeviceTimeline:
        return DeviceTimeline(
            lambda clock: Timeline(costs, clock=clock, cpu=lambda: 0.0), self.event, self.synchronize
        )


class DeviceEvent:
    def __init__(self, device: Device) -> None:
        self.device, self.at = device, 0.0

    def record(self, *_: Any) -> None:
        self.at = self.device.now

    def elapsed_time(self, end: Any) -> float:
        return float(end.at - self.at)


def test_devices_are_seen_by_their_events() -> None:
    device = Device()
    line = device.timeline()
    line.start("all_reduce", 9, RANKS, False)
    line.begin()  # forgets it
    for _ in range(3):
        line.mark()
        device.now += 1000
        flight = line.start("all_reduce", 3, RANKS, False)
        device.now += 1000
        with line.paused():
            device.now += 5000
        line.wait(flight)
        device.now += 2000
    line.mark()
    assert device.waits == 0, "nobody waits for the device meanwhile"
    found = line.step()
    assert (found.steps, found.seconds, found.exposed, found.computing) == (3, 6.0, 2.0, 4.0)
    assert found.collectives == {"all_reduce": (1, 3)} and device.waits == 1


def test_streams_come_to_events_in_an_order_of_their_own() -> None:
    device = Device()
    line = device.timeline()
    line.mark()
    device.now = 4000
    flight = line.start("all_reduce", 3, RANKS, False)
    device.now = 1000  # of another stream
    line.wait(flight)
    device.now = 5000
    line.mark()
    assert line.step().seconds == 8.0


def test_what_was_started_before_is_not_waited_for() -> None:
    device = Device()
    line = device.timeline()
    flight = line.start("all_reduce", 3, RANKS, False)
    line.begin()
    line.wait(flight)
    assert line.step().exposed == 0.0 and Device().timeline().step().steps == 0


def test_steps_are_those_between_marks() -> None:
    clock, line = begun()
    line.start("broadcast", 500, RANKS, True)
    line.begin()
    for computing in (9, 2, 3, 4):
        clock.now += 600  # what was sent before is over
        flight = line.start("all_reduce", 10, RANKS, True)
        clock.now += computing
        line.wait(flight)
        line.mark()
    found = line.step()
    assert (found.steps, found.seconds, found.exposed) == (3, 610.0, 7.0)
    assert found.communication == 10.0 and found.computing == 603.0
    assert found.collectives == {"all_reduce": (1, 10)}


def test_steps_are_what_repeats_at_the_end() -> None:
    clock, line = begun()
    line.start("broadcast", 1, RANKS, True)
    for _ in range(3):
        for kind, nbytes in (("all_gather", 4), ("all_gather", 4), ("reduce_scatter", 8)):
            clock.now += 1
            line.wait(line.start(kind, nbytes, RANKS, True))
    found = line.step()
    assert (found.steps, found.seconds, found.exposed) == (2, 19.0, 16.0)
    assert found.collectives == {"all_gather": (2, 8), "reduce_scatter": (1, 8)}


def test_nothing_repeats() -> None:
    clock, line = begun()
    clock.now += 5
    for nbytes in (1, 2, 3):
        line.wait(line.start("send", nbytes, RANKS, True))
    clock.now += 1
    found = line.step()
    assert (found.steps, found.seconds, found.exposed) == (0, 7.0, 6.0)
    assert Timeline(costs).step().collectives == {}


def test_the_table_that_is_nearest() -> None:
    tables = (costs(2, True), costs(8, True), costs(8, False))
    world = World(64, 8, tables)
    assert world.costs(16, False) is tables[2] and world.costs(2, True) is tables[0]
    assert World(64, 8, tables[:1]).costs(64, False) is tables[0], "one is better than none"
