"""The fast functions that host programs call: allocation, views, layout checks, devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from polyfuse.runtime.frozen import FROZEN, FrozenCall
from polyfuse.torch_compat import bindings
from polyfuse.torch_compat.calls import fast_call

__all__ = [
    "allocator",
    "assert_size_stride",
    "device_guard",
    "empty_strided_cpu",
    "on_device",
    "operator",
    "record_function",
    "reinterpret_tensor",
    "synchronize",
    "tensor_data_ptr_address",
]

assert_size_stride = bindings.assert_size_stride
empty_strided_cpu = bindings.empty_strided_cpu
reinterpret_tensor = bindings.reinterpret_tensor
record_function = torch.profiler.record_function
tensor_data_ptr_address = bindings.tensor_data_ptr_address


def allocator(device: str) -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]:
    """A function `(size, stride, dtype) -> Tensor` that makes uninitialised tensors on a device."""
    where = torch.device(device)
    fast: Any = getattr(bindings, f"empty_strided_{where.type}", None)
    if fast is not None and where.index is None:
        return fast

    def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=where)

    return empty_strided


def operator(name: str, out: bool = False) -> Callable[..., Any]:
    """The cheapest callable for an operator; with `out`, the one that is called with `out=`. After `frozen.`,
    one that calls it through `FrozenCall`.
    """
    if name.startswith(FROZEN):
        return FrozenCall(fast_call(name.removeprefix(FROZEN)))
    return fast_call(name, out)


def device_guard(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """A function that makes a context in which the device is current."""
    where = torch.device(device)
    if where.type == "cpu" or where.index is None:
        return nullcontext
    module = torch.get_device_module(where)
    return lambda: module.device(where.index)


def on_device(call: Callable[[list[Any]], Any], device: str) -> Callable[[list[Any]], Any]:
    """`call` with the device current while it runs; where only one exists, or it is the CPU, `call`
    itself.
    """
    where = torch.device(device) if device else torch.device("cpu")
    if where.type == "cpu" or where.index is None:
        return call
    module = torch.get_device_module(where)
    if module.device_count() < 2:
        return call
    index, current = where.index, bindings.current_device(where.type)

    def run(args: list[Any]) -> Any:
        if current() == index:
            return call(args)
        with module.device(index):
            return call(args)

    return run


def synchronize(device: str) -> None:
    """Wait until a device has done all its work."""
    where = torch.device(device)
    if where.type != "cpu":
        torch.get_device_module(where).synchronize(where)
