"""Devices whose every method is guarded, as the methods of backends are: one that raises, ends the process,
or answers nothing or nonsense is named once, and something else is answered, which is slower but right.

That is the answer of torch's module for the type, else one that claims nothing: no memory is counted,
nothing is recorded, no stored result is used. Where neither can answer, the caller gets an error that names
plugin and method. What a device reports of its own work (no memory left, a kernel that failed) is no fault.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields
from functools import partial, wraps
from types import new_class
from typing import Any, Final, TypeGuard

import torch

from polyfuse.base.log import warn_once
from polyfuse.base.text import brief
from polyfuse.plugin.hooks.faults import as_error, is_fault, wrong_answer
from polyfuse.plugin.session.guarded_parts import (
    FaultReporter,
    GuardedContext,
    GuardedEvent,
    GuardedRecorder,
    guarded_function,
    is_of_device,
)
from polyfuse.runtime.devices.device import Device, DeviceProperties, Limits, MemoryStatistics
from polyfuse.runtime.devices.registry import import_device

Report = Callable[[str, BaseException, str], None]
"""Called with a plugin's name, what its device raised, and what it was doing."""

_UNKNOWN: Final = f"unknown {uuid.uuid4().hex}"
"""What is in no key of another process."""

_STATE: Final = "_polyfuse_guard"


def guard_device(device: Device, plugin: str, device_type: str, report: Report, strict: bool) -> Device:
    """Guard the methods of a device that a plugin brought, and return it.

    Args:
        plugin: its name.
        device_type: which the device answers for, such as ``"cuda"``.
        report: called with each fault that was replaced by a safe answer.
        strict: whether a fault is raised instead. An exit never ends the process.
    """
    if _STATE in vars(device):
        return device
    trouble = FaultReporter(plugin, report, strict)
    kind = type(device)
    body: dict[str, Any] = {name: _method(kind, name, row) for name, row in METHODS.items()}
    for name, is_right in _FACTS.items():
        right, error = _fact(device, name, is_right)
        if not right:
            trouble.note(error, name)
            body[name] = getattr(Device, name)
    about = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made = new_class(kind.__name__, (kind,), exec_body=lambda names: names.update(about | body))
    device.__class__ = made
    vars(device)[_STATE] = trouble
    if vars(device).get("type") != device_type:
        device.type = device_type
    return device


def import_guarded(device_type: str, name: str, strict: bool = False) -> Device:
    """Let the class of that name (`class_name`) answer for a type in this process, guarded, unless another
    one does already.

    Raises:
        BackendUnavailableError: it cannot be imported or made, or is no `Device`.
    """

    def report(plugin: str, error: BaseException, doing: str) -> None:
        warn_once("plugin", f"{plugin} failed while {doing}: {brief(error)}; torch's own is used instead")

    def guard(made: Device) -> Device:
        return guard_device(made, name, device_type, report, strict)

    return import_device(device_type, name, guard)


def _fact(device: Device, name: str, is_right: Callable[[Any], bool]) -> tuple[bool, BaseException]:
    """Whether what a device says of itself once is of its type, and what is wrong if not."""
    try:
        value = getattr(device, name)
        return is_right(value), TypeError(f"{type(value).__name__} is not its type")
    except BaseException as error:
        if not is_fault(error):
            raise
        return False, error


def _finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value > 0


def _names(value: Any) -> bool:
    return isinstance(value, Set) and all(isinstance(name, str) for name in value)


def _three_names(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(name, str) for name in value)


_FACTS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "is_host": lambda value: isinstance(value, bool),
    "bernoulli_dropout": lambda value: isinstance(value, bool),
    "recorded_collectives": _names,
    "timeless_switches": _names,
    "memory_functions": _three_names,
    "network": _finite,
    "link": _finite,
}


@dataclass(frozen=True)
class Method:
    """How a method is guarded.

    Attributes:
        check: returns an answer as it is used, or raises `TypeError` with what is wrong with it; given the
            device, the answer and the arguments.
        last: what is answered where `Device`'s own method cannot answer either; None: an error.
        default: whether `Device`'s own method is asked in place of a fault.
        works: whether it gives the device work or waits for it, so that errors of the device come out of it.
    """

    check: Callable[..., Any]
    last: Callable[..., Any] | None = None
    default: bool = True
    works: bool = False


def _method(kind: type[Device], name: str, row: Method) -> Callable[..., Any]:
    own, usual = getattr(kind, name), getattr(Device, name)

    @wraps(own)
    def guarded(self: Device, *args: Any, **kwargs: Any) -> Any:
        try:
            return row.check(self, own(self, *args, **kwargs), *args, **kwargs)
        except BaseException as error:
            if not is_fault(error):
                raise
            trouble: FaultReporter = vars(self)[_STATE]
            if row.works and is_of_device(error):
                raise trouble.noted(error, name) from None
            fault = as_error(error, trouble.plugin, f"running its device's method `{name}`")
            if trouble.strict:
                raise trouble.error(fault, name) from error
            if row.default and own is not usual:
                try:
                    answer = row.check(self, usual(self, *args, **kwargs), *args, **kwargs)
                except Exception as other:
                    if row.works and is_of_device(other):
                        raise trouble.noted(other, name) from None
                else:
                    trouble.note(fault, name)
                    return answer
            if row.last is None:
                raise trouble.error(fault, name) from error
            trouble.note(fault, name)
            return row.last(self, *args, **kwargs)

    return guarded


# What answers must be.


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _nothing(*_: object, **__: object) -> None:
    """What it returns says nothing."""


def _is(*kinds: type, least: float | None = None) -> Callable[..., Any]:
    """A check that an answer is of one of these types, and no smaller than a number."""
    wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)

    def check(device: Device, answer: Any, *_: object, **__: object) -> Any:
        if not isinstance(answer, kinds) or (isinstance(answer, bool) and bool not in kinds):
            raise wrong_answer(answer, wanted)
        if _is_number(answer) and least is not None and not (math.isfinite(answer) and answer >= least):
            raise TypeError(f"{answer} is out of range")
        return answer

    return check


def _something(device: Device, answer: Any, *_: object, **__: object) -> Any:
    if answer is None or type(answer) is object or isinstance(answer, (list, dict)):
        raise wrong_answer(answer, "answer")
    return answer


def _numbers(wanted: type) -> Callable[..., Any]:
    """A check that an answer is a dataclass of this type, with a name and numbers from 0."""

    def check(device: Device, answer: Any, *_: object, **__: object) -> Any:
        if answer is None and wanted is MemoryStatistics:
            return None
        if not isinstance(answer, wanted):
            raise wrong_answer(answer, wanted.__name__)
        for field in fields(answer):  # type: ignore[arg-type]
            value = getattr(answer, field.name)
            right = isinstance(value, str) if field.name == "name" else _is_number(value) and value >= 0
            if not right:
                raise TypeError(f"its field {field.name} is {_shown(value)}")
        return answer

    return check


def _shown(value: object) -> str:
    """A wrong value as a message shows it: a number as it is, anything else by its type."""
    return str(value) if _is_number(value) else f"a {type(value).__name__}"


def _limits(device: Device, answer: Any) -> Limits:
    if not isinstance(answer, Limits):
        raise wrong_answer(answer, "Limits")
    if not isinstance(answer.missing, Set) or not all(isinstance(d, torch.dtype) for d in answer.missing):
        raise TypeError("its field missing is no set of element types")
    if not isinstance(answer.most_elements, int) or answer.most_elements < 0:
        raise TypeError(f"its field most_elements is {_shown(answer.most_elements)}")
    return answer


def _switches(device: Device, answer: Any) -> Mapping[str, object]:
    if not isinstance(answer, Mapping):
        raise wrong_answer(answer, "mapping")
    found = dict(answer)
    if not all(isinstance(name, str) for name in found):
        raise TypeError("a name of a switch is no text")
    return found


def _trouble(device: Device) -> FaultReporter:
    trouble: FaultReporter = vars(device)[_STATE]
    return trouble


def _brought(device: Device, name: str) -> bool:
    """Whether a method is the plugin's: what `Device`'s own ones return needs no guard."""
    return getattr(type(device).__mro__[1], name) is not getattr(Device, name)


def _function(name: str, is_right: Callable[[Any], bool]) -> Callable[..., Any]:
    """A check that an answer is a function, which is guarded then, as programs call it."""

    def check(device: Device, answer: Any, *args: Any, **kwargs: Any) -> Any:
        if not callable(answer):
            raise wrong_answer(answer, "function")
        if not _brought(device, name):
            return answer
        usual = partial(getattr(Device, name), device, *args, **kwargs)
        return guarded_function(answer, usual, _trouble(device), name, is_right)

    return check


def _context(name: str) -> Callable[..., Any]:
    def check(device: Device, answer: Any, *args: Any, **kwargs: Any) -> Any:
        if not (hasattr(answer, "__enter__") and hasattr(answer, "__exit__")):
            raise wrong_answer(answer, "context")
        return GuardedContext(answer, _trouble(device), name) if _brought(device, name) else answer

    return check


def _event(device: Device, answer: Any) -> Any:
    if not _brought(device, "event"):
        return _something(device, answer)
    for part in ("record", "synchronize", "elapsed_time"):
        if not callable(getattr(answer, part, None)):
            raise wrong_answer(answer, f"event: it has no method `{part}`")
    return GuardedEvent(answer, _trouble(device))


def _recorder(device: Device, answer: Any, index: int | None = None) -> Any:
    if answer is None:
        return None
    for part in ("new_pool", "is_recording", "follow", "record"):
        if not callable(getattr(answer, part, None)):
            raise wrong_answer(answer, f"recorder: it has no method `{part}`")
    return GuardedRecorder(answer, _trouble(device), partial(device.synchronize, index))


def _seconds(device: Device, op: str, nbytes: int, *_: object, **__: object) -> float:
    return nbytes / Device.network


def _unknown(device: Device, index: int | None = None) -> str:
    return f"{device.type} {_UNKNOWN}"


METHODS: Final[Mapping[str, Method]] = {
    "module": Method(_something),
    "count": Method(_is(int, least=0), lambda device: 0),
    "current": Method(_function("current", lambda number: isinstance(number, int))),
    "guard": Method(_context("guard"), works=True),
    "current_stream": Method(_something, works=True),
    "stream_address": Method(_function("stream_address", lambda number: isinstance(number, int))),
    "stream_function": Method(_is(int, least=0), lambda device: 0),
    "use_stream": Method(_context("use_stream"), works=True),
    "new_stream": Method(_something, works=True),
    "event": Method(_event, works=True),
    "synchronize": Method(_nothing, works=True),
    "allocator": Method(_function("allocator", lambda made: isinstance(made, torch.Tensor))),
    "copy": Method(_nothing, works=True),
    "memory": Method(_numbers(MemoryStatistics), lambda device, index=None: None),
    "properties": Method(_numbers(DeviceProperties)),
    "limits": Method(_limits),
    "rounds": Method(_is(bool)),
    "switches": Method(_switches, lambda device: {"unknown": _UNKNOWN}, default=False),
    "set_switches": Method(_nothing),
    "facts": Method(_is(str), _unknown, default=False),
    "generator": Method(_is(torch.Generator, type(None)), lambda device, index=None: None, default=False),
    "recorder": Method(_recorder),
    "is_recording": Method(_is(bool), lambda device: False),
    "collective_seconds": Method(_is(int, float, least=0), _seconds),
}
"""Every method of `Device`."""
