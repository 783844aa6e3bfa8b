"""The fast functions that host programs call: allocation, views, layout checks, devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.frozen import (
    CHECKED,
    FROZEN,
    TOGETHER,
    CheckedCall,
    CheckedCalls,
    FrozenCall,
    FrozenCalls,
)
from polyfuse.torch_compat import bindings
from polyfuse.torch_compat.calls import fast_call

if TYPE_CHECKING:
    from polyfuse.runtime.devices.device import Allocate

assert_size_stride = bindings.assert_size_stride
empty_strided_cpu = bindings.empty_strided_cpu
reinterpret_tensor = bindings.reinterpret_tensor
result_view = bindings.result_view
record_function = bindings.record_function

_ONCE = ((FROZEN, FrozenCall, FrozenCalls), (CHECKED, CheckedCall, CheckedCalls))
tensor_data_ptr_address = bindings.tensor_data_ptr_address


def allocator(device: str) -> Allocate:
    """A function `(size, stride, dtype) -> Tensor` that makes uninitialised tensors on a device."""
    where = torch.device(device)
    return device_of(where.type).allocator(where.index)


def operator(name: str, out: bool = False) -> Callable[..., Any]:
    """The cheapest callable for an operator; with `out`, the one that is called with `out=`. After `frozen.`,
    one that calls it through `FrozenCall`, and after `checked.`, through `CheckedCall`; after `together.`
    behind these, through `FrozenCalls` and `CheckedCalls`.
    """
    for prefix, once, all_at_once in _ONCE:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            call = fast_call(name.removeprefix(TOGETHER))
            return all_at_once(call) if name.startswith(TOGETHER) else once(call)
    return fast_call(name, out)


def device_guard(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """A function that makes a context in which the device is current."""
    where = torch.device(device)
    index, found = where.index, device_of(where.type)
    if found.is_host or index is None:
        return nullcontext
    return lambda: found.guard(index)


def on_device(call: Callable[[list[Any]], Any], device: str) -> Callable[[list[Any]], Any]:
    """`call` with the device current while it runs; where only one exists, or it is the CPU, `call`
    itself.
    """
    where = torch.device(device) if device else torch.device("cpu")
    index, found = where.index, device_of(where.type)
    if found.is_host or index is None or found.count() < 2:
        return call
    current = found.current()

    def run(args: list[Any]) -> Any:
        if current() == index:
            return call(args)
        with found.guard(index):
            return call(args)

    return run


def synchronize(device: str) -> None:
    """Wait until a device has done all its work."""
    where = torch.device(device)
    device_of(where.type).synchronize(where.index)
