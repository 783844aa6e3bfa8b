"""One rank's timeline on a device that computes while its host goes on: events on the device say when it
came to each collective. What is played is played afterwards, so that nothing waits for the device
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from polyfuse.distributed.timeline import StepTimes, Timeline
from polyfuse.runtime.devices.device import Event


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
