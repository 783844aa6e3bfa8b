"""One rank's timeline: what it computes takes as long as it does here, and what it waits for from others as
long as a table of costs says. Where the ranks of a host keep more cores busy than it has, what they compute
takes longer.

On a device that computes while its host goes on, events on the device say when it came to each collective.
What is played is played afterwards, so that nothing waits for the device meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from polyfuse.runtime.devices.device import Event
from polyfuse.runtime.ranks.costs import CollectiveCosts, kind_of


@dataclass
class TimedCollective:
    """A collective of the timeline.

    Attributes:
        kind: of `KINDS`.
        nbytes: of the larger of what one rank gives and gets.
        ranks: of its group.
        begun, done: seconds on the timeline.
        exposed: seconds in which the rank waited for it.
        cores: that each rank keeps busy while it lasts.
    """

    kind: str
    nbytes: int
    ranks: int
    begun: float
    done: float
    exposed: float = 0.0
    cores: float = 0.0

    @property
    def shape(self) -> tuple[str, int, int]:
        """What is equal in each step of a program."""
        return self.kind, self.nbytes, self.ranks


@dataclass(frozen=True)
class StepTimes:
    """A step of a program, or all of it where nothing repeats.

    Attributes:
        seconds: from its first collective to that of the next step.
        exposed: of them, those in which the rank waits for others.
        communication: that its collectives take, hidden or not.
        collectives: how many there are, with their bytes, by kind.
        steps: how many equal ones were seen; 0: nothing repeats.
        flights: its collectives, one after another, in seconds from its beginning.
    """

    seconds: float
    exposed: float
    communication: float
    collectives: dict[str, tuple[int, int]]
    steps: int
    flights: tuple[TimedCollective, ...] = ()

    @property
    def computing(self) -> float:
        """Seconds in which the rank does not wait."""
        return self.seconds - self.exposed


class Timeline:
    """Simulates the network for one rank, one collective after another; a `Network` of simulated groups.

    Args:
        costs: the table of a group: from its number of ranks, and whether they share a host.
        per_host: ranks on each host; 0: all on one.
        clock: seconds of what is computed here.
        share: ranks of a host for each of its cores; 0: it has as many cores as they need.
        cpu: CPU seconds of what is computed here.
    """

    def __init__(
        self,
        costs: Callable[[int, bool], CollectiveCosts],
        per_host: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        share: float = 0.0,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.flights: list[TimedCollective] = []
        self._marks: list[tuple[float, int]] = []
        self._costs, self._per_host = costs, per_host
        self._clock = clock
        self._network_free = 0.0
        self._share, self._cpu = share, cpu
        self._now = 0.0
        self._seen, self._used = clock(), cpu()

    def now(self) -> float:
        """Seconds on the timeline."""
        clock, cpu = self._clock(), self._cpu()
        seconds, used = clock - self._seen, cpu - self._used
        self._seen, self._used = clock, cpu
        self._now += self._slowed(seconds, used)
        return self._now

    def _slowed(self, seconds: float, used: float) -> float:
        """How long something takes beside the other ranks of the host, which do the same, and collectives on
        their way, which take longer, too.

        Args:
            seconds: that it took alone.
            used: CPU seconds of it.
        """
        if seconds <= 0:
            return 0.0
        busy, taken, late = used / seconds, 0.0, 0.0
        for flight in self._flying():
            flight.done += late
            beside = min(seconds, max(0.0, flight.done - self._now - taken))
            slow = max(1.0, (busy + flight.cores) * self._share)
            seconds -= beside
            taken += beside * slow
            late += beside * (slow - 1)
            flight.done += beside * (slow - 1)
        self._network_free += late
        return taken + seconds * max(1.0, busy * self._share)

    def _flying(self) -> list[TimedCollective]:
        """Collectives that are not over, in the order in which the network does them."""
        flying: list[TimedCollective] = []
        for flight in reversed(self.flights):
            if flight.done <= self._now:
                break
            flying.append(flight)
        return flying[::-1]

    def begin(self) -> None:
        """Forget what was played so far: what is compiled is not part of a step."""
        self.now()
        self.flights.clear()
        self._marks.clear()

    def mark(self) -> None:
        """A step of the program ends here, such as an optimizer's."""
        self._marks.append((self.now(), len(self.flights)))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside takes no time on the timeline."""
        self.now()
        try:
            yield
        finally:
            self._seen, self._used = self._clock(), self._cpu()

    def start(self, op: str, nbytes: int, ranks: Sequence[int], on_host: bool) -> TimedCollective:
        """A collective begins when the network has done those before it."""
        kind, now = kind_of(op), self.now()
        together = not self._per_host or len({rank // self._per_host for rank in ranks}) == 1
        costs = self._costs(len(ranks), together)
        cpu = costs.cpu_of(kind, nbytes, len(ranks))
        # the least time that was measured may be one in which others of a host had done their part before
        seconds = max(costs.of(kind, nbytes, len(ranks)), cpu * self._share)
        self._network_free = max(now, self._network_free) + (seconds if len(ranks) > 1 else 0.0)
        cores = cpu / seconds if seconds else 0.0
        flight = TimedCollective(kind, nbytes, len(ranks), now, self._network_free, cores=cores)
        self.flights.append(flight)
        return flight

    def wait(self, started: Any) -> None:
        """The rank waits for a collective."""
        left = max(0.0, started.done - self.now())
        started.exposed += left
        self._now += left

    def step(self) -> StepTimes:
        """The step in the middle by its seconds, among those with the most usual collectives, or the latest:
        a first step may have more. Steps are what lies between marks, else what repeats; all since `begin`
        where nothing does.
        """
        flights, spans = self.flights, self._spans()
        if not spans:
            end = max([self.now(), *(f.done for f in flights)])
            begun = flights[0].begun if flights else end
            return _times(flights, begun, end - begun, 0)
        found = [_times(flights[i:j], begun, seconds, len(spans)) for i, j, begun, seconds in spans]
        made = [times.collectives for times in found]
        usual = max(reversed(made), key=made.count)
        alike = sorted((t for t in found if t.collectives == usual), key=lambda times: times.seconds)
        return alike[(len(alike) - 1) // 2]

    def _spans(self) -> list[tuple[int, int, float, float]]:
        """Of each step the first collective, the one after the last, when it begins, and seconds."""
        if len(self._marks) > 1:
            return [(i, j, begun, end - begun) for (begun, i), (end, j) in pairwise(self._marks)]
        shapes = [flight.shape for flight in self.flights]
        size = _period(shapes)
        if not size:
            return []
        firsts = range(len(shapes) - size * _repeats(shapes, size), len(shapes), size)
        begun = [flight.begun for flight in self.flights]
        return [(i, j, begun[i], begun[j] - begun[i]) for i, j in pairwise(firsts)]


def _times(flights: Sequence[TimedCollective], begun: float, seconds: float, steps: int) -> StepTimes:
    kinds: dict[str, tuple[int, int]] = {}
    for flight in flights:
        count, nbytes = kinds.get(flight.kind, (0, 0))
        kinds[flight.kind] = count + 1, nbytes + flight.nbytes
    # one that waits for the network is not longer for it
    busy, end = 0.0, float("-inf")
    for flight in flights:
        busy += flight.done - max(end, flight.begun)
        end = flight.done
    exposed = sum(flight.exposed for flight in flights)
    moved = tuple(replace(f, begun=f.begun - begun, done=f.done - begun) for f in flights)
    return StepTimes(seconds, min(exposed, seconds), busy, kinds, steps, moved)


def _period(shapes: Sequence[object]) -> int:
    """How many collectives a step has that is repeated at the end, for most of a list; 0: nothing is."""
    for size in range(1, len(shapes) // 2 + 1):
        if size * _repeats(shapes, size) > len(shapes) // 2 and _repeats(shapes, size) > 1:
            return size
    return 0


def _repeats(shapes: Sequence[object], size: int) -> int:
    """How often the last ones are at the end, one time after another."""
    last, count = shapes[-size:], 1
    while shapes[max(0, len(shapes) - (count + 1) * size) : len(shapes) - count * size] == last:
        count += 1
    return count


@dataclass(frozen=True)
class _Entry:
    """What happened when the device came to an event.

    Attributes:
        what: the method of `Timeline` that is called, or the end of a pause.
        event: on the device.
        given: arguments; of a wait, the entry that started the collective.
    """

    what: Literal["start", "wait", "mark", "pause", "resume"]
    event: Event
    given: tuple[Any, ...] = ()


class DeviceTimeline:
    """A `Network` of simulated groups, as `Timeline`, for a device.

    What the host of the device does is seen as far as the device waits for it. Where it waits for others,
    too, that is counted in addition, although the host would go on meanwhile.

    Args:
        timeline: makes one by a clock of seconds.
        event: a new event of the device.
        synchronize: waits for the device.
    """

    def __init__(
        self,
        timeline: Callable[[Callable[[], float]], Timeline],
        event: Callable[[], Event],
        synchronize: Callable[[], object],
    ) -> None:
        self._timeline, self._event, self._synchronize = timeline, event, synchronize
        self._entries: list[_Entry] = []

    def _note(self, what: Any, *given: Any) -> _Entry:
        event = self._event()
        event.record()
        self._entries.append(_Entry(what, event, given))
        return self._entries[-1]

    def begin(self) -> None:
        """Forget what was played so far."""
        self._entries.clear()

    def mark(self) -> None:
        """A step of the program ends here."""
        self._note("mark")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What the device does inside takes no time on the timeline."""
        self._note("pause")
        try:
            yield
        finally:
            self._note("resume")

    def start(self, op: str, nbytes: int, ranks: Sequence[int], on_host: bool) -> Any:
        """A collective begins when the device comes to it."""
        return self._note("start", op, nbytes, tuple(ranks), on_host)

    def wait(self, started: Any) -> None:
        """The device waits for a collective."""
        self._note("wait", started)

    def step(self) -> StepTimes:
        """As of a timeline."""
        self._synchronize()
        now, first = 0.0, self._entries[0].event if self._entries else None
        played = self._timeline(lambda: now)
        flights: dict[int, Any] = {}
        pause = ExitStack()
        for entry in self._entries:
            # streams of a device come to events in an order of their own
            now = max(now, first.elapsed_time(entry.event) * 1e-3 if first is not None else 0.0)
            match entry.what:
                case "start":
                    flights[id(entry)] = played.start(*entry.given)
                case "wait" if id(entry.given[0]) in flights:  # else it was started before what is played
                    played.wait(flights[id(entry.given[0])])
                case "mark":
                    played.mark()
                case "pause":
                    pause.enter_context(played.paused())
                case "resume":
                    pause.close()
        return played.step()
