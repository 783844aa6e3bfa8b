"""What becomes of a program on a device without memory, beside kernels that never end and other processes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from polyfuse.autotune.candidate import (
    BuiltProgram,
    CallStep,
    Fault,
    KernelStep,
    Problem,
    Slot,
    Storage,
    Window,
    WorkerSetup,
)
from polyfuse.autotune.worker import WorkerRunner
from polyfuse.base.settings import Settings, child_environment
from polyfuse.compiler.reports.report import last_reports
from polyfuse_triton.backend import TritonBackend
from recorded_on_device import same, status
from triton_sources import source

pytestmark = pytest.mark.gpu
SECONDS = 240


@contextmanager
def no_more_memory(extra: int = 0) -> Iterator[None]:
    """This process gets no more than it holds, and so many bytes."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + extra) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def let_go() -> None:
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.softmax(x @ w, -1) + x
    return x


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8192, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda") / 32


def is_compiled() -> bool:
    return not any(report.eager for report in last_reports()) and last_reports()[-1].kernels > 0


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("called_before", [False, True], ids=["compiling", "running"])
def test_without_memory_it_ends_in_torchs_error_and_works_again(training: bool, called_before: bool) -> None:
    x, w = operands()
    w.requires_grad_(training)
    run = torch.compile(chain, backend="polyfuse", dynamic=False)

    def step() -> torch.Tensor:
        y = run(x, w)
        return torch.autograd.grad(y.sum(), w)[0] if training else y

    expected = torch.autograd.grad(chain(x, w).sum(), w)[0] if training else chain(x, w)
    if called_before:
        same(step(), expected)
    # at the beginning (Dynamo itself asks for one number), in the middle, and shortly before the end
    for extra in (4 << 20, 40 << 20, 80 << 20):
        let_go()
        with no_more_memory(extra), pytest.raises(torch.OutOfMemoryError):
            hold = [step() for _ in range(8)]
            pytest.fail(f"{len(hold)} results found memory")
        let_go()
        same(step(), expected)
    assert is_compiled()


def test_without_memory_for_a_recording_the_call_runs() -> None:
    x, w = operands()
    expected = chain(x, w)
    run = torch.compile(chain, backend="polyfuse", dynamic=False, options={"device_graphs": True})
    same(run(x, w), expected)
    # 300 MiB for the call, and none for a recording, whose memory is its own: a part of them is in use
    let_go()
    chunk = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
    del chunk
    # more than is free behind `w` in its segment, where it would leave all of the chunk to be given back
    held = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    with no_more_memory():
        result = run(x, w)
    del held
    let_go()
    same(result, expected)
    del result
    assert status().recordings == 0 and "no memory for a recording" in status().text()
    for _ in range(3):
        same(run(x, w), expected)
    assert status().recordings == 1 and status().replays >= 2, status().text()


def test_without_memory_to_replay_into_it_ends_in_torchs_error() -> None:
    """Results that a caller keeps are copies, in memory that must be had at each call."""
    x, w = operands()
    expected = chain(x, w)
    run = torch.compile(chain, backend="polyfuse", dynamic=False, options={"device_graphs": True})
    held = [run(x, w) for _ in range(8)]
    let_go()
    with no_more_memory(), pytest.raises(torch.OutOfMemoryError):
        held += [run(x, w) for _ in range(8)]
    same(held, [expected] * len(held))
    held.clear()
    let_go()
    same(run(x, w), expected)


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ,
    reason="the test takes nearly all of the device's memory, which tests of other workers need",
)
def test_without_memory_to_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has nearly all of the device: nothing can be timed, and the model is compiled, or
    ends in torch's own error.
    """
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    x, w = torch.randn(96, 128, device="cuda").half(), torch.randn(80, 128, device="cuda").half()

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.nn.functional.gelu(torch.nn.functional.linear(x, w)), -1)

    expected = layer(x, w)
    run = torch.compile(layer, backend="polyfuse", mode="max-autotune-no-cudagraphs")
    let_go()
    hog = torch.empty(torch.cuda.mem_get_info()[0] - (300 << 20), dtype=torch.uint8, device="cuda")
    with suppress(torch.OutOfMemoryError):
        torch.testing.assert_close(run(x, w), expected, rtol=3e-2, atol=3e-2)
    del hog
    let_go()
    torch.testing.assert_close(run(x, w), expected, rtol=3e-2, atol=3e-2)
    assert is_compiled()


ENDLESS = """@triton.jit
def POLYFUSE_KERNEL(in0, out0, ks0, XBLOCK: tl.constexpr):
    found = tl.atomic_add(out0, 0.0)
    while found < 1e30:
        found = tl.atomic_add(out0, 0.0)
    tl.store(out0, found)
"""
DEVICE = "cuda:0"
ROWS = Window(0, (2, 8), (8, 1), 0, "float32")
STORAGES = Storage("float32", DEVICE, 16), Storage("float32", DEVICE, 16)
GOOD = BuiltProgram("good", (CallStep("aten.add.Tensor", (ROWS, ROWS)),))


def test_a_kernel_that_never_ends_costs_only_itself(tmp_path: Path) -> None:
    endless = source(ENDLESS, "endless", constexprs=(("XBLOCK", 16),))
    TritonBackend(Settings(cache_dir=str(tmp_path / "cache"))).build([endless], tmp_path)
    step = KernelStep("triton", str(tmp_path), endless.key, (Slot(0), Slot(1), 16))
    setup = WorkerSetup(Settings(), {"triton": "polyfuse_triton.backend:TritonBackend"})
    runner = WorkerRunner(lambda: setup, 20)
    try:
        runner.prepare(Problem("rows", DEVICE, "triton", STORAGES))
        assert runner.sample(GOOD) > 0
        stuck = runner._ready()
        with pytest.raises(Fault, match="did not end within 20 seconds"):
            runner.first(BuiltProgram("endless", (step,)))
        assert not stuck.alive
        assert runner.sample(GOOD) > 0
    finally:
        runner.close()
    assert torch.ones(3, device=DEVICE).sum().item() == 3


MANY = """
import torch
def f(x, w):
    return torch.softmax(x @ w, -1) * x.sum(-1, keepdim=True)
x, w = torch.randn(256, 128, device="cuda"), torch.randn(128, 128, device="cuda")
expected = f(x, w)
for mode in ("default", "reduce-overhead", "max-autotune-no-cudagraphs"):
    torch.compiler.reset()
    run = torch.compile(f, backend="polyfuse", mode=mode)
    for _ in range(4):
        torch.testing.assert_close(run(x, w), expected, rtol=1e-3, atol=1e-3)
print("right")
"""


def test_several_processes_on_one_device(tmp_path: Path) -> None:
    environment = child_environment(POLYFUSE_CACHE_DIR=str(tmp_path / "cache"))
    command = [sys.executable, "-c", MANY]
    running = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(4)
    ]
    try:
        for process in running:
            said, _ = process.communicate(timeout=200)
            assert process.returncode == 0 and "right" in said, said[-3000:]
    finally:
        for process in running:
            process.kill()
