"""Kernels for a GPU without one: what they ask of the driver, which a few functions here fake."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.base.errors import KernelLaunchError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply, load
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, symbol
from polyfuse.testing.cases.builder import Builder, Store
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_cuda.driver import Driver
from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.launch import device_launcher
from polyfuse_halide.launch.device_runtime import HalideRuntime
from polyfuse_halide.launch.executable_memory import address_of
from polyfuse_halide.launch.launcher import DeviceCall, make_launcher
from polyfuse_halide.launch.objects import link

F32 = DType.f32


class FakeDriver:
    """The driver's functions, which note what they are asked."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.modules: list[bytes] = []
        self.names: list[bytes] = []
        self.answer = 0
        words, number = ctypes.c_void_p, ctypes.c_uint
        self.cuLaunchKernel = ctypes.CFUNCTYPE(
            ctypes.c_int, words, *[number] * 7, words, ctypes.POINTER(words), words
        )(self._launch)

    def _launch(self, *given: Any) -> int:
        function, *shape, stream, arguments, extra = given
        self.launches.append((function, tuple(shape), stream, [arguments[k] for k in range(3)], extra))
        return self.answer

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = 1
        return 0

    def cuModuleLoadData(self, module: Any, text: ctypes.c_void_p) -> int:
        self.modules.append(ctypes.string_at(text.value or 0))
        module._obj.value = 77
        return 0

    def cuModuleGetFunction(self, function: Any, _module: Any, name: bytes) -> int:
        self.names.append(name)
        function._obj.value = 1234
        return 0

    def cuCtxGetDevice(self, device: Any) -> int:
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, device: Any) -> int:
        value._obj.value = 200 << 10
        return 0

    def cuFuncSetAttribute(self, function: Any, which: int, value: Any) -> int:
        return 0

    def cuGetErrorName(self, status: int, words: Any) -> int:
        words._obj.value = b"CUDA_ERROR_OUT_OF_PATIENCE"
        return 0

    def cuGetErrorString(self, status: int, words: Any) -> int:
        words._obj.value = b"no patience left"
        return 0


def doubled(size: Any) -> Kernel:
    i = axis("i0", size)
    args = [KernelArg("in0", "in", F32, size), KernelArg("out0", "out", F32, size)]
    if not isinstance(size, int):
        args.append(KernelArg("s0", "size", DType.i64))
    builder = Builder("doubled", (i,), (), tuple(args))
    value = load("in0", i, F32)
    builder.once(Store("out0", i, apply("add", value, value)))
    return replace(builder.kernel((1000,)), device="cuda")


def launcher(kernel: Kernel, folder: Path, fake: FakeDriver) -> tuple[Any, HalideRuntime]:
    backend = HalideBackend(Settings.resolve(options={"halide.gpu": "80"}))
    source = backend.emit(kernel)
    backend.build([source], folder)
    runtime = HalideRuntime(Driver(fake))
    data = (folder / f"{source.key}.o").read_bytes()
    function = link([data], [source.symbol], runtime.symbols)[source.symbol]

    def current(index: int, cell: int) -> int:
        ctypes.c_uint64.from_address(cell).value = 4000 + index
        return 0

    stream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(current)
    device = DeviceCall(3, runtime.stream, address_of(stream), 4096, runtime.status)
    call = make_launcher(source.symbol, function, source.meta, None, device)
    return (call, stream), runtime


def pointed(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def test_a_launch_has_the_grid_the_stream_and_the_tensors_addresses(tmp_path):
    fake = FakeDriver()
    (call, _), _ = launcher(doubled(1000), tmp_path, fake)
    x, y = torch.ones(1000), torch.empty(1000)
    call(x, y)
    call(y, x)
    (function, shape, stream, arguments, extra), again = fake.launches
    assert (function, stream, extra) == (1234, 4003, None)
    assert shape == (4, 1, 1, 256, 1, 1, 0)
    assert {pointed(arguments[0]), pointed(arguments[1])} == {x.data_ptr(), y.data_ptr()}
    assert pointed(again[3][0]) in (x.data_ptr(), y.data_ptr())
    # code is loaded once, and a kernel is looked up once
    assert len(fake.modules) == len(fake.names) == 1
    assert fake.names[0] in fake.modules[0] and b".target sm_80" in fake.modules[0]


def test_sizes_decide_on_the_grid_and_an_empty_one_is_not_launched(tmp_path):
    fake = FakeDriver()
    (call, _), _ = launcher(doubled(symbol("s0", 0, None)), tmp_path, fake)
    x = torch.ones(5000)
    for size in (5000, 0, 256):
        call(x, x, size)
    assert [shape[0] for _, shape, _, _, _ in fake.launches] == [20, 1]


def test_a_launch_that_fails_says_why(tmp_path):
    fake = FakeDriver()
    fake.answer = 9
    (call, _), runtime = launcher(doubled(1000), tmp_path, fake)
    with pytest.raises(RuntimeError):
        call(torch.ones(1000), torch.empty(1000))
    assert runtime.driver.has_context()
    assert "no patience left" in runtime.reason()


def test_the_first_launch_is_done_before_another_thread_begins(monkeypatch):
    """It loads the code, which lets other threads run before its tensors' addresses are used."""
    monkeypatch.setattr(device_launcher, "runtime", lambda: HalideRuntime(Driver(FakeDriver())))
    seen: list[tuple[str, int]] = []
    inside, going_on = threading.Event(), threading.Event()

    def call(number: int) -> None:
        seen.append(("begins", number))
        if not inside.is_set():
            inside.set()
            going_on.wait(60)
        seen.append(("ends", number))

    found = device_launcher._Launcher("kernel", b"", "{}", None)
    monkeypatch.setattr(found, "_make", lambda index: call)
    threads = [threading.Thread(target=found.only, args=(number,)) for number in range(3)]
    threads[0].start()
    assert inside.wait(60)
    for thread in threads[1:]:
        thread.start()
        thread.join(0.2)
    assert seen == [("begins", 0)]
    going_on.set()
    for thread in threads:
        thread.join(60)
    assert seen[:2] == [("begins", 0), ("ends", 0)] and len(seen) == 6


def test_a_first_launch_that_fails_is_tried_again(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(device_launcher, "runtime", lambda: HalideRuntime(Driver(fake)))
    found = device_launcher._Launcher("kernel", b"", "{}", None)
    answers = [RuntimeError("no"), None]

    def call() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(found, "_make", lambda index: call)
    with pytest.raises(KernelLaunchError, match="could not be launched"):
        found.only()
    found.only()
    assert not answers


def test_what_failed_in_another_thread_is_no_answer(tmp_path):
    fake = FakeDriver()
    (call, _), runtime = launcher(doubled(1000), tmp_path, fake)
    x, y = torch.ones(1000), torch.empty(1000)
    ctypes.c_int.from_address(runtime.status).value = 201
    call(x, y)
    assert len(fake.launches) == 1


def test_a_thread_without_a_context_gets_one(monkeypatch):
    fake = FakeDriver()
    monkeypatch.setattr(device_launcher, "runtime", lambda: HalideRuntime(Driver(fake)))
    found = device_launcher._Launcher("kernel", b"", "{}", None)
    entered: list[int] = []

    def call() -> None:
        if not entered:
            raise RuntimeError("no context")

    monkeypatch.setattr(found, "_make", lambda index: call)
    monkeypatch.setattr(found._runtime.driver, "has_context", lambda: bool(entered))
    monkeypatch.setattr(found._runtime, "enter_context", lambda: entered.append(1))
    found.only()
    assert entered == [1]
