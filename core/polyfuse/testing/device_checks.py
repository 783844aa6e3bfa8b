"""What a `Device` promises, tried on the device itself: streams, events, memory, recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from polyfuse.runtime.devices.device import Device
from polyfuse.runtime.devices.registry import device_of

_COUNT = 4096
_LONG = 64
"""Launches that a host gives faster than a device does them."""


def check_device(device: str) -> Iterator[tuple[str, str]]:
    """Each check's name, and what is wrong; empty if nothing is. For a device such as ``"cuda:0"``."""
    where = torch.device(device)
    for name, check in _CHECKS.items():
        try:
            yield name, check(device_of(where.type), where)
        except Exception as error:
            yield name, f"it raised {type(error).__name__}: {error}"


def _currents(device: Device, where: torch.device) -> str:
    for index in range(device.count()):
        with device.guard(index):
            if device.current()() != index:
                return f"under the guard of device {index}, the current one is {device.current()()}"
    return ""


def _events(device: Device, where: torch.device) -> str:
    x = torch.ones(_COUNT, device=where)
    begin, end = device.event(), device.event()
    begin.record()
    for _ in range(8):
        x.add_(1)
    end.record()
    end.synchronize()
    if begin.elapsed_time(end) <= 0:
        return f"eight additions took {begin.elapsed_time(end)} ms"
    return _expect(x, 9.0)


def _streams(device: Device, where: torch.device) -> str:
    outside = device.current_stream(where.index)
    stream = device.new_stream(where.index)
    x = torch.ones(_COUNT, device=where)
    device.synchronize(where.index)
    with device.use_stream(stream):
        if device.current_stream(where.index) != stream:
            return "a stream that is used is not the current one"
        x.add_(1)
    if device.current_stream(where.index) != outside:
        return "after its context, a stream is still the current one"
    device.synchronize(where.index)
    return _expect(x, 2.0)


def _waiting(device: Device, where: torch.device) -> str:
    x = torch.ones(_COUNT, device=where)
    device.synchronize(where.index)
    begin, end = device.event(), device.event()
    with device.use_stream(device.new_stream(where.index)):
        begin.record()
        for _ in range(_LONG):
            x.add_(1)
        end.record()
    device.synchronize(where.index)
    try:
        begin.elapsed_time(end)
    except RuntimeError as error:
        return f"after waiting for the device, an event was not reached: {error}"
    return _expect(x, 1.0 + _LONG)


def _copies(device: Device, where: torch.device) -> str:
    source, back = torch.arange(float(_COUNT)), torch.empty(_COUNT)
    x = device.allocator(where.index)((_COUNT,), (1,), torch.float32)
    device.copy(x, source, wait=False)
    x.mul_(2)
    device.copy(back, x)
    return "" if torch.equal(back, 2 * source) else "a copy to the device and back changed values"


def _memory(device: Device, where: torch.device) -> str:
    before = device.memory(where.index)
    x = device.allocator(where.index)((3, 5), (1, 3), torch.float32)
    alignment = device.properties(where.index).alignment
    if (x.shape, x.stride(), x.dtype) != ((3, 5), (1, 3), torch.float32) or x.device.type != device.type:
        return f"the allocator made {x.dtype} {tuple(x.shape)} with strides {x.stride()} on {x.device}"
    if x.data_ptr() % alignment:
        return f"an address is no multiple of {alignment}, as the properties say"
    if before is None:
        return ""
    during = device.memory(where.index)
    assert during is not None
    if during.allocated < before.allocated + 60 or during.peak < during.allocated:
        return f"{before} became {during} by 60 bytes"
    del x
    return "" if device.memory(where.index) != during else "statistics do not see that a tensor is freed"


def _recording(device: Device, where: torch.device) -> str:
    recorder = device.recorder(where.index)
    if recorder is None:
        return ""
    x, y = torch.ones(_COUNT, device=where), torch.zeros(_COUNT, device=where)

    def program(args: list[torch.Tensor]) -> list[torch.Tensor]:
        assert recorder is not None and recorder.is_recording()
        return [torch.add(args[0], 1, out=y)]

    program_free = recorder.is_recording()
    device.synchronize(where.index)
    graph, _ = recorder.record(program, [x], recorder.new_pool(), ())
    device.synchronize(where.index)
    if program_free or recorder.is_recording():
        return "it records where nobody asked for it"
    fault = _expect(y, 0.0)
    if fault:
        return f"recording computed: {fault}"
    for value in (1.0, 5.0):
        x.fill_(value)
        recorder.follow()
        graph.replay()
        device.synchronize(where.index)
        fault = fault or _expect(y, value + 1)
    graph.reset()
    return fault


def _failed_recording(device: Device, where: torch.device) -> str:
    recorder = device.recorder(where.index)
    if recorder is None:
        return ""

    def program(args: list[torch.Tensor]) -> list[torch.Tensor]:
        raise LookupError("on purpose")

    try:
        recorder.record(program, [], recorder.new_pool(), ())
    except LookupError:
        x = torch.ones(_COUNT, device=where).add_(1)
        return "it goes on recording" if recorder.is_recording() else _expect(x, 2.0)
    return "an error of the program is lost"


def _facts(device: Device, where: torch.device) -> str:
    properties = device.properties(where.index)
    if not properties.name:
        return "the properties have no name"
    if device.facts(where.index) != device.facts(where.index):
        return "facts differ from call to call"
    before = dict(device.switches())
    device.set_switches(before)
    return "" if before == device.switches() else "switches change when they are set to what they are"


def _expect(x: torch.Tensor, value: float) -> str:
    found = x.cpu()
    return "" if bool((found == value).all()) else f"{float(found[0])} was found instead of {value}"


_CHECKS: dict[str, Callable[[Device, torch.device], str]] = {
    "a guard makes its device the current one": _currents,
    "events measure time": _events,
    "streams are used and left": _streams,
    "waiting for a device waits for all its streams": _waiting,
    "copies keep values": _copies,
    "the allocator makes what is asked for, and counts it": _memory,
    "recorded work is replayed": _recording,
    "a recording that fails leaves nothing": _failed_recording,
    "facts stay the same": _facts,
}

DEVICE_CHECKS = tuple(_CHECKS)
"""The name of each check."""
