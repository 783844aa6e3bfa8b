"""Times of a program on a device with a clock of its own, here one that counts."""

from __future__ import annotations

from typing import Any

import pytest

from polyfuse.reporting.timing import ProgramTimer
from polyfuse.runtime.devices.device import Device


class Event:
    now = 0.0

    def __init__(self) -> None:
        self.at = -1.0

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        assert self.at >= 0

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


class Clock(Device):
    def module(self) -> Any:
        return None  # torch has none for the type

    def event(self, timed: bool = True) -> Any:
        return Event()

    def synchronize(self, index: int | None = None) -> None:
        pass

    def is_recording(self) -> bool:
        return False


class Recording(Clock):
    def is_recording(self) -> bool:
        return True


def kernel(milliseconds: float) -> Any:
    def launch(*operands: Any) -> None:
        Event.now += milliseconds

    return launch


@pytest.fixture
def timer() -> ProgramTimer:
    timer = ProgramTimer()
    timer._device = Clock("fake")
    return timer


def program(timer: ProgramTimer, *kernels: tuple[str, float]) -> Any:
    wrapped = [timer.wrap(name, kernel(taken)) for name, taken in kernels]

    def call(args: list[Any]) -> list[Any]:
        taken, args[:] = list(args), []
        for launch in wrapped:
            launch(*taken)
        return taken

    return timer._call(call, frozenset(), True)


def test_device_times_are_those_of_its_clock(timer: ProgramTimer) -> None:
    run = program(timer, ("a", 3.0), ("b", 5.0), ("a", 3.0))
    assert run([1, 2]) == [1, 2]
    assert timer.repeated == 6 and len(timer.calls) == 7
    assert timer.milliseconds(["a", "b", "a"]) == pytest.approx([3.0, 5.0, 3.0])
    spans = [event.device for event in timer.calls[-1].events]
    assert spans == [pytest.approx((0, 3e-3)), pytest.approx((3e-3, 8e-3)), pytest.approx((8e-3, 11e-3))]


def test_other_calls_than_the_programs_have_no_times(timer: ProgramTimer) -> None:
    program(timer, ("a", 3.0))([])
    assert timer.milliseconds(["a", "b"]) is None
    assert ProgramTimer().milliseconds([]) is None


def test_calls_are_measured_up_to_a_limit(timer: ProgramTimer) -> None:
    run = program(timer, ("a", 1.0))
    for _ in range(100):
        run([])
    assert len(timer.calls) == 24


def test_what_is_being_recorded_is_not_measured(timer: ProgramTimer) -> None:
    timer._device = Recording("fake")
    program(timer, ("a", 1.0))([])
    assert not timer.calls


def test_a_call_that_raises_leaves_the_timer_usable(timer: ProgramTimer) -> None:
    def broken(args: list[Any]) -> None:
        raise ValueError("a fault of the program")

    run = timer._call(broken, frozenset(), True)
    for _ in range(2):
        with pytest.raises(ValueError, match="a fault"):
            run([])
    assert not timer.calls
