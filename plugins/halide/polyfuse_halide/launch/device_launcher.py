"""Launchers of kernels for a GPU: they go to torch's current stream, and tensors are used where they lie."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from polyfuse.base.errors import KernelLaunchError
from polyfuse_cuda.driver import EARLIER_ERROR
from polyfuse_halide.launch.device_runtime import HalideRuntime, runtime
from polyfuse_halide.launch.launcher import DeviceCall, make_launcher, nothing
from polyfuse_halide.launch.objects import link


def device_launcher(symbol: str, data: bytes, meta: str, data_ptr: int | None) -> Callable[..., None]:
    """A callable for a kernel of an object file, on the device that is current when it is called."""
    if json.loads(meta)["empty"]:
        return nothing
    import torch

    found = _Launcher(symbol, data, meta, data_ptr)
    return found.only if torch.cuda.device_count() <= 1 else found.current


class _Launcher:
    """A kernel on each device that it was called for: its code and its memory belong to one context."""

    def __init__(self, symbol: str, data: bytes, meta: str, data_ptr: int | None) -> None:
        self._symbol, self._data, self._meta, self._data_ptr = symbol, data, meta, data_ptr
        self._made: dict[int, Callable[..., None]] = {}
        self._ready: dict[int, Callable[..., None]] = {}
        self._spare: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._runtime: HalideRuntime = runtime()

    def only(self, *operands: Any) -> None:
        """Launch on the one device of this machine."""
        call = self._ready.get(0)
        if call is None:
            self._first(0, operands)
        else:
            self._launch(call, operands)

    def current(self, *operands: Any) -> None:
        """Launch on the current one of several devices."""
        import torch

        index = torch.cuda.current_device()
        call = self._ready.get(index)
        if call is None:
            self._first(index, operands)
        else:
            self._launch(call, operands)

    def _first(self, index: int, operands: tuple[Any, ...]) -> None:
        """The first launch, which loads the code: meanwhile other threads run, and must not write the
        addresses of their tensors over those that are about to be used.
        """
        with self._lock:
            if index not in self._made:
                self._made[index] = self._make(index)
            self._launch(self._made[index], operands)
            self._ready[index] = self._made[index]

    def _launch(self, call: Callable[..., None], operands: tuple[Any, ...]) -> None:
        try:
            call(*operands)
        except RuntimeError:
            self._again(call, operands)

    def _again(self, call: Callable[..., None], operands: tuple[Any, ...]) -> None:
        """A thread that has launched nothing before has no context yet."""
        if not self._runtime.driver.has_context():
            self._runtime.reason()
            self._runtime.enter_context()
            try:
                call(*operands)
                return
            except RuntimeError:
                pass
        raise KernelLaunchError(
            f"kernel {self._symbol} could not be launched: {self._runtime.reason()}",
            EARLIER_ERROR,
        ) from None

    def _make(self, index: int) -> Callable[..., None]:
        import torch

        from polyfuse.runtime.launching import current_stream, current_stream_address

        # what kernels may look at where a tensor has no elements
        spare = torch.zeros(256, dtype=torch.uint8, device=torch.device("cuda", index))
        functions: Mapping[str, int] = link([self._data], [self._symbol], self._runtime.symbols)
        device = DeviceCall(
            index,
            self._runtime.stream,
            current_stream_address("cuda") or 0,
            spare.data_ptr(),
            self._runtime.status,
        )
        call = make_launcher(self._symbol, functions[self._symbol], self._meta, self._data_ptr, device)
        if not device.stream_function:
            call = self._runtime.streamed(call, current_stream("cuda"), index)
        self._spare[index] = spare
        return call
