"""When each launch and call of a program begins and ends, on the host and on the device."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.compiler.built import Built
from polyfuse.compiler.native_host import NativeHost
from polyfuse.ir.nodes import OBJECT_CALL, RAISE, Collective, Wait
from polyfuse.program.steps import ExternStep, LaunchKernel
from polyfuse.runtime.devices.device import Device
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.module import KernelEntry
from polyfuse.runtime.native_program import Opener
from polyfuse.schedule import Call, Launch

_MEASURED = 24
"""Calls of a program that are measured; later ones are not."""
_REPEATS, _REPEAT_SECONDS, _REPEAT_BYTES = 6, 0.5, 2 << 30
"""How often a program is run again for the sake of its times, and what that may cost."""
_OPERATOR = re.compile(r"^(\w+) = operator\('([^']+)'(?:, out=True)?\)$", re.MULTILINE)


@dataclass
class Event:
    """One launch or call, in seconds from the start of the program's call.

    Attributes:
        name: in the program.
        start, end: on the host.
        marks: events of the device before and after it; None on the CPU.
        device: start and end on the device, read once it has run.
    """

    name: str
    start: float
    end: float
    marks: tuple[Any, Any] | None = None
    device: tuple[float, float] | None = None


@dataclass
class CallTimes:
    """One call of a program."""

    seconds: float
    events: list[Event]


@dataclass
class ProgramTimer:
    """Measures one program.

    Attributes:
        calls: what was measured, oldest first.
        waited: seconds that the first call waited for kernels to be built.
        repeated: calls made for the sake of their times alone.
    """

    calls: list[CallTimes] = field(default_factory=list)
    waited: float = 0.0
    repeated: int = 0
    _device: Device | None = None
    _events: list[Event] | None = None
    _base: Any = None
    _start: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def entries(self, kernels: Mapping[str, KernelEntry]) -> dict[str, KernelEntry]:
        """The kernels, each measured at every launch."""
        return {name: _Entry(name, entry, self) for name, entry in kernels.items()}

    def install(self, built: Built, device: str, fresh: Sequence[int]) -> None:
        """Measure the operators that a program calls, and its calls.

        Args:
            built: what was compiled.
            device: of the program.
            fresh: positions of inputs that the program may overwrite.
        """
        found = device_of(device or "cpu")
        self._device = None if found.is_host else found
        space = built.module.namespace
        for name in called_names(built):
            if callable(space.get(name)):
                space[name] = self.wrap(name, space[name])
        native = built.module.native
        if isinstance(native, NativeHost):
            built.module.native = replace(native, opener=_as_python)
        calls = [s.node for s in built.schedule.steps if isinstance(s, Call) and s.node.op != RAISE]
        # what has an effect besides its results happens as often as the user's program says
        repeatable = not any(
            c.ordered or c.mutates or isinstance(c, (Collective, Wait)) or c.op.startswith(OBJECT_CALL)
            for c in calls
        )
        space["call"] = self._call(space["call"], frozenset(fresh), repeatable)

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A kernel or an operator that notes when it runs."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            events = self._events
            if events is None:
                return function(*args, **kwargs)
            marks = None
            if self._device is not None:
                marks = self._device.event(), self._device.event()
                marks[0].record()
            start = time.perf_counter()
            out = function(*args, **kwargs)
            end = time.perf_counter()
            if marks is not None:
                marks[1].record()
            events.append(Event(name, start - self._start, end - self._start, marks))
            return out

        return measured

    def read(self) -> None:
        """Wait for devices, and read their times."""
        for call in self.calls:
            for event in call.events:
                if event.marks is not None and event.device is None:
                    base, (begin, end) = call.events[0].marks, event.marks
                    assert base is not None
                    end.synchronize()
                    offset = base[0].elapsed_time(begin) * 1e-3
                    event.device = offset, offset + begin.elapsed_time(end) * 1e-3

    def _call(
        self, function: Callable[[list[Any]], Any], fresh: frozenset[int], repeatable: bool
    ) -> Callable[[list[Any]], Any]:
        def measured(args: list[Any]) -> Any:
            recording = self._device is not None and self._device.is_recording()
            if recording or len(self.calls) >= _MEASURED or not self._lock.acquire(blocking=False):
                return function(args)
            try:
                first = not self.calls
                again = _SavedInputs.of(args, fresh) if first and repeatable else None
                out = self._one(function, args)
                if again is not None:
                    self._repeat(function, again)
                return out
            finally:
                self._lock.release()

        return measured

    def _one(self, function: Callable[[list[Any]], Any], args: list[Any]) -> Any:
        if self._device is not None:
            self._device.synchronize()
        self._events, self._start = [], time.perf_counter()
        try:
            out = function(args)
            if self._device is not None:
                self._device.synchronize()
            self.calls.append(CallTimes(time.perf_counter() - self._start, self._events))
            return out
        finally:
            self._events = None

    def _repeat(self, function: Callable[[list[Any]], Any], again: _SavedInputs) -> None:
        """Run the program a few times more on the same inputs: its first call is slower than others."""
        began = time.perf_counter()
        with _random_numbers_as_before(self._device):
            for _ in range(_REPEATS):
                if time.perf_counter() - began + self.calls[-1].seconds > _REPEAT_SECONDS:
                    break
                self._one(function, again.args())
                self.repeated += 1

    def milliseconds(self, numbers: Sequence[str]) -> list[float | None] | None:
        """The time of each launch and call of the program, as the median of its calls without the first.

        Args:
            numbers: the names of launches and calls in the program's order.

        Returns:
            None where the program was not called, or calls something else than these.
        """
        self.read()
        good = [c for c in self.calls if [e.name for e in c.events] == list(numbers)]
        good = good[1:] or good
        if not good:
            return None
        return [statistics.median(_span(c.events[i]) for c in good) * 1e3 for i in range(len(numbers))]


def _random_numbers_as_before(device: Device | None) -> AbstractContextManager[None]:
    """A context after which the generators of the host, and of a device that has some, are as before."""
    if device is None or not hasattr(device.module(), "get_rng_state"):
        return torch.random.fork_rng(devices=())
    return torch.random.fork_rng(device_type=device.type)


def _span(event: Event) -> float:
    begin, end = event.device or (event.start, event.end)
    return end - begin


@dataclass(frozen=True)
class _Entry:
    """A kernel on its way that is measured once it is there."""

    name: str
    entry: KernelEntry
    timer: ProgramTimer

    def result(self) -> Callable[..., Any]:
        """Wait for it."""
        began = time.perf_counter()
        found = self.entry if callable(self.entry) else self.entry.result()
        self.timer.waited += time.perf_counter() - began
        return self.timer.wrap(self.name, found)


@dataclass(frozen=True)
class _SavedInputs:
    """The inputs of a call, to be made again: copies of what the program may overwrite."""

    values: tuple[Any, ...]
    fresh: frozenset[int]

    @staticmethod
    def of(args: Sequence[Any], fresh: frozenset[int]) -> _SavedInputs | None:
        """None where the copies would need too much memory."""
        tensors = [args[i] for i in sorted(fresh) if isinstance(args[i], torch.Tensor)]
        if sum(t.nbytes for t in tensors) > _REPEAT_BYTES:
            return None
        return _SavedInputs(tuple(_copy(a) if i in fresh else a for i, a in enumerate(args)), fresh)

    def args(self) -> list[Any]:
        """New ones, equal to the first."""
        return [_copy(a) if i in self.fresh else a for i, a in enumerate(self.values)]


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value.detach())


def _as_python() -> Opener:
    raise UnsupportedError("a report measures launches one by one, which only the Python program lets it")


def called_names(built: Built) -> tuple[str, ...]:
    """The variables by which a program calls operators."""
    named = _names_of_calls(built)
    externs = (step for step in built.program.steps if isinstance(step, ExternStep))
    return tuple(dict.fromkeys(name for step in externs if (name := named(step)) is not None))


def _names_of_calls(built: Built) -> Callable[[ExternStep], str | None]:
    """The variable by which a program calls an operator, by its step."""
    named = {op: name for name, op in _OPERATOR.findall(built.module.text)}
    objects = {key: name for name, key in built.module.namespace["OBJECTS"].items()}
    return lambda step: objects.get(step.op.removeprefix(OBJECT_CALL)) or named.get(step.op)


def event_names(built: Built) -> tuple[list[str], list[int]] | None:
    """The names that each call of a program notes, and the step of the schedule behind each.

    None where the program's calls are not those of the schedule.
    """
    position = {s.name: i for i, s in enumerate(built.schedule.steps) if isinstance(s, Launch)}
    launches = {k.name: iter(k.launches) for k in built.program.kernels}
    # what raises is a check of the program, not a call
    steps_made = enumerate(built.schedule.steps)
    calls = [i for i, s in steps_made if isinstance(s, Call) and s.node.op != RAISE]
    externs = [s for s in built.program.steps if isinstance(s, ExternStep)]
    named = _names_of_calls(built)
    at = iter(calls)
    names: list[str] = []
    steps: list[int] = []
    if len(calls) != len(externs):
        return None
    for step in built.program.steps:
        if isinstance(step, LaunchKernel):
            names.append(step.kernel)
            steps.append(position[next(launches[step.kernel])])
        elif isinstance(step, ExternStep):
            number = next(at)
            name = named(step)
            if name is not None:
                names.append(name)
                steps.append(number)
    return names, steps
