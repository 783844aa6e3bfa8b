"""Which object answers for a type of device.

A session asks its plugins (the hook `polyfuse_device`) when a type is first met; a package brings the name of
the class. One object answers for a type in the whole process, because what it stands for exists once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.runtime.devices.device import Device
from polyfuse.runtime.devices.host import HostDevice

Finder = Callable[[str], Device | None]

_lock = threading.RLock()
_known: dict[str, Device] = {"cpu": HostDevice("cpu")}
_finder: list[Finder] = []


def device_of(device: str) -> Device:
    """The `Device` of a device or a type, such as ``"cpu"``: a plugin's, else one around torch's module."""
    kind = device.partition(":")[0]
    found = _known.get(kind)
    if found is not None:
        return found
    with _lock:
        if kind not in _known:
            brought = _finder[0](kind) if _finder else None
            if brought is None:
                # not cached: a plugin that is found later may know better
                return Device(kind)
            _known[kind] = brought
        return _known[kind]


def use_device(device_type: str, device: Device | None) -> None:
    """Let an object answer for a type from now on, instead of what answered before; None: ask anew."""
    with _lock:
        _known.pop(device_type, None)
        if device is not None:
            _known[device_type] = device
        elif device_type == "cpu":
            _known["cpu"] = HostDevice("cpu")


def find_devices_with(finder: Finder) -> None:
    """Ask `finder` for types that nobody answered for yet."""
    with _lock:
        _finder[:] = [finder]


def known_devices() -> Mapping[str, Device]:
    """The devices that were met, by type."""
    with _lock:
        return dict(_known)


def class_name(device: Device) -> str:
    """Where another process finds the class of a device: ``package.module:Class``."""
    return f"{type(device).__module__}:{type(device).__qualname__}"


def import_device(device_type: str, name: str, guard: Callable[[Device], Device]) -> Device:
    """Let the class of that name answer for a type, unless another one does.

    Args:
        guard: returns a device that was made as it is to be used.

    Raises:
        BackendUnavailableError: it cannot be imported or made, or is no `Device`.
    """
    with _lock:
        if device_type not in _known:
            module, _, attribute = name.partition(":")
            try:
                made: Any = getattr(import_module(module), attribute)(device_type)
                if not isinstance(made, Device):
                    raise TypeError(f"a {type(made).__name__} is no Device")
                made = guard(made)
            except (Exception, SystemExit) as error:
                raise BackendUnavailableError(
                    f"the device {device_type!r} is served by {name}, which cannot be imported ({error})",
                    f"install the distribution that has {module}",
                ) from error
            _known[device_type] = made
        return _known[device_type]
