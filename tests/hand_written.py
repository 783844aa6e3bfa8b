"""Hand-written Triton kernels on a machine without a graphics processor.

torch asks Triton which processor there is, and reads the kernel's code for that one to see what it writes;
here that is a made-up one. A launch runs in Triton's interpreter, on tensors in ordinary memory; the kernel
itself must call no other compiled function (`tl.sum` is one).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


class _Driver:
    """As much of a driver as is asked for at compile time, and by a kernel that chooses a configuration."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Any:
        def bench(call: Any, quantiles: Any = None, **options: Any) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return bench


@contextmanager
def interpreted_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let kernels run in the interpreter; yields the names of those launched, in order."""
    from triton.runtime.driver import driver
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    launched: list[str] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        launched.append(self.fn.__name__)
        return InterpretedFunction(self.fn).run(*args, grid=grid, warmup=warmup, **options)

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr("torch._dynamo.utils.has_triton", lambda: True, raising=False)
    # `active` would look for a processor
    monkeypatch.setattr(driver, "_active", _Driver())
    yield launched
