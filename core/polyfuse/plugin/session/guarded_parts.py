"""What the methods of a device return, guarded: functions, contexts, events, recorders, recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import torch

from polyfuse.base.errors import BackendError
from polyfuse.base.text import brief
from polyfuse.plugin.hooks.faults import as_error, is_fault, wrong_answer

if TYPE_CHECKING:
    from polyfuse.runtime.devices.graphs import Program

_OF_TORCH: Final = (torch.OutOfMemoryError, torch.AcceleratorError)


def is_of_device(error: BaseException) -> bool:
    """Whether an error is what a device reports of its work: memory, or a kernel, failed. Torch raises these,
    and whoever called must see them as they are.
    """
    return type(error) is RuntimeError or isinstance(error, _OF_TORCH)


@dataclass(frozen=True)
class FaultReporter:
    """Reports the faults of one plugin's device.

    Attributes:
        plugin: its name.
        report: called with the name, the error and what the device was doing.
        strict: whether faults are raised.
    """

    plugin: str
    report: Callable[[str, BaseException, str], None]
    strict: bool

    def note(self, error: BaseException, method: str) -> None:
        """Warn, once for a method, that something else is used; with `strict`, raise the error."""
        if self.strict:
            raise self.error(error, method) from error
        self.report(self.plugin, error, f"running its device's method `{method}`")

    def raised(self, error: BaseException, method: str) -> BaseException:
        """A fault as it is raised where nothing can be answered: what the device reports as it is."""
        return self.noted(error, method) if is_of_device(error) else self.error(error, method)

    def noted(self, error: BaseException, method: str) -> BaseException:
        """An error of the device, with a note of whose method raised it."""
        text = f"raised by the device of plugin {self.plugin!r} in `{method}`"
        if text not in getattr(error, "__notes__", ()):
            error.add_note(text)
        return error

    def error(self, error: BaseException, method: str) -> BackendError:
        """A fault for which nothing else can be answered."""
        return BackendError(
            f"the device of plugin {self.plugin!r} failed in its method `{method}` ({brief(error)})",
            "report it to the plugin's author",
        )


def guarded_function(
    function: Callable[..., Any],
    usual: Callable[[], Callable[..., Any]],
    trouble: FaultReporter,
    method: str,
    is_right: Callable[[Any], bool],
) -> Callable[..., Any]:
    """A function that a method returned. Once it fails, what `Device`'s own method returns is called.

    Args:
        usual: makes the other one.
        is_right: whether a result is of its type.
    """
    used = function

    def call(*args: Any) -> Any:
        nonlocal used
        try:
            answer = used(*args)
            if is_right(answer):
                return answer
            raise TypeError(f"its function returned {'None' if answer is None else type(answer).__name__}")
        except BaseException as error:
            if not is_fault(error):
                raise
            if is_of_device(error):
                raise trouble.noted(error, method) from None
            fault = as_error(error, trouble.plugin, f"running its device's method `{method}`")
            if used is not function:
                raise trouble.error(fault, method) from error
            try:
                other = usual()
                answer = other(*args)
            except Exception as second:
                raise (second if is_of_device(second) else trouble.error(fault, method)) from error
            trouble.note(fault, method)
            used = other
            return answer

    return call


class GuardedContext:
    """A context of a plugin's device."""

    def __init__(self, inner: Any, trouble: FaultReporter, method: str) -> None:
        self._inner, self._trouble, self._method = inner, trouble, method

    def __enter__(self) -> Any:
        return _or_error(self._trouble, self._method, self._inner.__enter__)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._inner.__exit__(kind, value, trace)
        except BaseException as error:
            if error is value:
                return
            if not is_fault(error):
                raise
            raise self._trouble.raised(error, self._method) from error


class GuardedEvent:
    """An event of a plugin's device."""

    def __init__(self, inner: Any, trouble: FaultReporter) -> None:
        self._inner, self._trouble = inner, trouble

    def record(self) -> None:
        """Put it behind what the current stream was given so far."""
        _or_error(self._trouble, "event", self._inner.record)

    def synchronize(self) -> None:
        """Wait until the device has reached it."""
        _or_error(self._trouble, "event", self._inner.synchronize)

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds to another one."""
        other = end._inner if isinstance(end, GuardedEvent) else end
        found = _or_error(self._trouble, "event", self._inner.elapsed_time, other)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise self._trouble.error(TypeError(f"a {type(found).__name__} is no time"), "event")
        return float(found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class GuardedRecorder:
    """A recorder of a plugin's device.

    Args:
        wait: waits for the device: what is done where streams cannot be made to wait for each other.
    """

    def __init__(self, inner: Any, trouble: FaultReporter, wait: Callable[[], None]) -> None:
        self._inner, self._trouble, self._wait = inner, trouble, wait

    def new_pool(self) -> Any:
        """A pool of memory that recordings may share."""
        return _or_error(self._trouble, "recorder().new_pool", self._inner.new_pool)

    def is_recording(self) -> bool:
        """Whether what the current stream is given is being recorded already."""
        try:
            found = _or_error(self._trouble, "recorder().is_recording", self._inner.is_recording)
            if not isinstance(found, bool):
                raise wrong_answer(found, "bool")
            return found
        except (BackendError, TypeError) as error:
            self._trouble.note(error.__cause__ or error, "recorder().is_recording")
            return False

    def follow(self) -> None:
        """Let the current stream wait for the one from which recorded memory was last used."""
        try:
            _or_error(self._trouble, "recorder().follow", self._inner.follow)
        except BackendError as error:
            self._trouble.note(error.__cause__ or error, "recorder().follow")
            self._wait()

    def record(
        self, program: Program, args: list[Any], pool: Any, generators: Sequence[torch.Generator]
    ) -> tuple[GuardedGraph, Sequence[Any]]:
        """Record a program. What the program raises is raised as it is."""
        raised: list[BaseException] = []

        def watched(given: list[Any]) -> Sequence[Any]:
            try:
                return program(given)
            except BaseException as error:
                raised.append(error)
                raise

        def run() -> tuple[Any, Sequence[Any]]:
            graph, results = self._inner.record(watched, args, pool, generators)
            if not callable(getattr(graph, "replay", None)) or not callable(getattr(graph, "reset", None)):
                raise TypeError(f"a {type(graph).__name__} cannot be replayed")
            if not isinstance(results, Sequence):
                raise TypeError(f"a {type(results).__name__} is no sequence of results")
            return graph, results

        try:
            graph, results = run()
        except BaseException as error:
            if (raised and error is raised[0]) or not is_fault(error):
                raise
            raise self._trouble.raised(error, "recorder().record") from error
        return GuardedGraph(graph, self._trouble), results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class GuardedGraph:
    """Recorded work of a plugin's device."""

    def __init__(self, inner: Any, trouble: FaultReporter) -> None:
        self._inner, self._trouble = inner, trouble

    def replay(self) -> None:
        """Give all of it to the current stream."""
        _or_error(self._trouble, "recorder().record().replay", self._inner.replay)

    def reset(self) -> None:
        """Forget it."""
        try:
            _or_error(self._trouble, "recorder().record().reset", self._inner.reset)
        except BackendError as error:
            self._trouble.note(error.__cause__ or error, "recorder().record().reset")


def _or_error(trouble: FaultReporter, method: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call what nothing can be done in place of: a fault is an error that names plugin and method."""
    try:
        return function(*args)
    except BaseException as error:
        if not is_fault(error):
            raise
        raise trouble.raised(error, method) from error
