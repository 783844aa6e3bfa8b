"""Building, launching, timing and choosing Triton kernels on a real GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from polyfuse.base.errors import KernelLaunchError
from polyfuse.base.settings import Settings, child_environment
from polyfuse.plugin import DeviceTimer, Launchable, Source
from polyfuse_triton.backend import TritonBackend
from polyfuse_triton.build.artifact import read_unit
from polyfuse_triton.build.meta import MetaArg
from polyfuse_triton.launch.plain import PlainLauncher
from polyfuse_triton.launch.services import torch_services
from triton_sources import META, source

pytestmark = pytest.mark.gpu

DESCRIPTORS = """@triton.jit
def POLYFUSE_KERNEL(in0, out0, ks0, XBLOCK: tl.constexpr):
    a = tl.make_tensor_descriptor(in0, shape=[ks0, ks0], strides=[ks0, 1], block_shape=[XBLOCK, XBLOCK])
    b = tl.make_tensor_descriptor(out0, shape=[ks0, ks0], strides=[ks0, 1], block_shape=[XBLOCK, XBLOCK])
    x = tl.program_id(0) * XBLOCK
    y = tl.program_id(1) * XBLOCK
    b.store([x, y], a.load([x, y]) + 1)
"""

SQUARE = """@triton.jit
def POLYFUSE_KERNEL(in0, out0, ks0, XBLOCK: tl.constexpr):
    i = tl.arange(0, XBLOCK)
    total = tl.zeros((XBLOCK, XBLOCK), tl.float32)
    for k in range(0, ks0, 32):
        j = k + tl.arange(0, 32)
        a = tl.load(in0 + i[:, None] * ks0 + j[None, :])
        b = tl.load(in0 + i[None, :] * ks0 + j[:, None])
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(out0 + i[:, None] * XBLOCK + i[None, :], total)
"""


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> TritonBackend:
    folder = tmp_path_factory.mktemp("cache")
    return TritonBackend(Settings(cache_dir=str(folder)))


@pytest.fixture(params=["native", "plain"])
def build(
    request: pytest.FixtureRequest, backend: TritonBackend, tmp_path: Path
) -> Callable[[Source], Launchable]:
    def built(kernel: Source) -> Launchable:
        folder = tmp_path / kernel.key
        folder.mkdir()
        backend.build([kernel], folder)
        if request.param == "native":
            return backend.load(folder)[kernel.key]
        return PlainLauncher(torch_services()).kernel(read_unit(folder)[kernel.key], folder)

    return built


def operands(count: int = 5000) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, device="cuda"), torch.empty(count, device="cuda")


def test_results(build):
    kernel, (x, out) = build(source()), operands()
    kernel(x, out, 5000)
    torch.testing.assert_close(out, x + 1)
    kernel(x.data_ptr(), out.data_ptr(), 0)


def test_the_current_stream_is_used(build):
    kernel, (x, out) = build(source()), operands()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # long enough that a launch on another stream would come first
        torch.cuda._sleep(50_000_000)
        x.fill_(3.0)
        kernel(x, out, 5000)
    stream.synchronize()
    assert out.eq(4.0).all()


def test_a_thread_of_its_own(build):
    kernel, (x, out) = build(source()), operands()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            kernel(x, out, 5000)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures
    torch.testing.assert_close(out, x + 1)


@pytest.mark.usefixtures("two_gpus")
def test_another_device(build):
    kernel = build(source())
    for index in (1, 0, 1):
        with torch.cuda.device(index):
            x, out = operands()
            assert x.device.index == index
            kernel(x, out, 5000)
            torch.testing.assert_close(out, x + 1)


def test_addresses_that_are_not_round_are_refused_and_harm_nothing(build):
    kernel, (x, out) = build(source()), operands()
    with pytest.raises(KernelLaunchError, match="no multiple of 16"):
        kernel(x[1:], out, 10)
    kernel(x, out, 5000)
    torch.testing.assert_close(out, x + 1)


def test_more_than_48_kib_of_shared_memory(build, backend, tmp_path):
    one = source(SQUARE, constexprs=(("XBLOCK", 128),), num_warps=8, num_stages=4, grid=(1, 1, 1))
    folder = tmp_path / "look"
    folder.mkdir()
    backend.build([one], folder)
    assert read_unit(folder)[one.key].variants[0].shared_bytes > 48 * 1024
    kernel = build(one)
    x = torch.randn(128, 256, device="cuda")
    out = torch.empty(128, 128, device="cuda")
    kernel(x, out, 256)
    torch.testing.assert_close(out, x @ x.T, rtol=1e-4, atol=1e-3)


def test_descriptors_have_their_scratch_memory(build):
    args = (*META.args[:2], MetaArg("ks0", "size", "i32", True))
    kernel = build(
        source(DESCRIPTORS, args=args, constexprs=(("XBLOCK", 32),), grid=("ks0 // 32", "ks0 // 32", 1))
    )
    x = torch.randn(128, 128, device="cuda")
    out = torch.empty_like(x)
    for _ in range(3):
        kernel(x, out, 128)
    torch.testing.assert_close(out, x + 1)


def test_clusters_and_cooperative_grids(build, backend):
    changes: list[dict[str, object]] = [{"cooperative": True}]
    if backend.target.arch >= 90:
        changes.append({"num_ctas": 2})
    for change in changes:
        kernel, (x, out) = build(source(**change)), operands()
        kernel(x, out, 5000)
        torch.testing.assert_close(out, x + 1)


def test_a_launch_that_the_device_refuses_is_an_error(build):
    huge = source(cooperative=True, grid=("ks0", 1, 1))
    kernel, (x, out) = build(huge), operands()
    with pytest.raises(KernelLaunchError, match="could not be launched"):
        kernel(x, out, 10_000_000)
    torch.cuda.synchronize()


def test_captured_and_replayed(build):
    kernel, (x, out) = build(source()), operands()
    kernel(x, out, 5000)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, out, 5000)
    x.fill_(7.0)
    graph.replay()
    assert out.eq(8.0).all()


def test_timing(backend, tmp_path):
    one = source()
    backend.build([one], tmp_path)
    kernel = backend.load(tmp_path)[one.key]
    small, large = operands(1 << 12), operands(1 << 26)
    quick = DeviceTimer("cuda").milliseconds([lambda: kernel(*small, 1 << 12)])
    slow = DeviceTimer("cuda").milliseconds([lambda: kernel(*large, 1 << 26)])
    assert 0 < quick < slow < 1000


def test_profilers_show_readable_names(build):
    kernel, (x, out) = build(source()), operands()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        kernel(x, out, 5000)
        torch.cuda.synchronize()
    names = {event.name for event in profile.events()}
    assert "fused_add_one" in names and any(name.startswith("k_fused_add_one_") for name in names)


SCRIPT = """
import logging, sys, torch
logging.basicConfig(level=logging.INFO)
def f(x, y):
    return torch.softmax(x * 2 + y, -1)
x, y = torch.randn(512, 1000, device="cuda"), torch.randn(1000, device="cuda")
g = torch.compile(f, backend="polyfuse", mode=sys.argv[1])
torch.testing.assert_close(g(x, y), f(x, y), rtol=1e-4, atol=1e-4)
"""


TUNED = "max-autotune-no-cudagraphs"


def run(folder: Path, mode: str, **variables: str) -> str:
    chosen = {"POLYFUSE_CACHE_DIR": str(folder), "POLYFUSE_STRICT": "1", "POLYFUSE_BUILD_WORKERS": "4"}
    env = child_environment(**chosen, **variables)
    command = [sys.executable, "-c", SCRIPT, mode]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_configurations_are_timed_once(tmp_path):
    first = run(tmp_path, TUNED, POLYFUSE_LOG="autotune=info")
    assert "is the fastest of" in first
    assert any((tmp_path / "timings").rglob("*.json"))
    assert "is the fastest of" not in run(tmp_path, TUNED, POLYFUSE_LOG="autotune=info")


def test_the_report_of_the_option_profile(tmp_path):
    said = run(tmp_path, "default", POLYFUSE_PROFILE="1")
    assert "kernels of Polyfuse" in said and "GB/s" in said and "fused_max_exp_sum_div" in said


def test_workers_leave_the_gpu_alone(backend, tmp_path):
    """A build in a process that sees no GPU is the same."""
    script = (
        "import sys, json; from pathlib import Path\n"
        "from polyfuse_triton.build.toolchain import build_in_worker\n"
        "from triton_sources import source\n"
        f"build_in_worker([source()], Path({str(tmp_path)!r}), json.loads(sys.argv[1]))\n"
    )
    env = child_environment(
        CUDA_VISIBLE_DEVICES="", PYTHONPATH=os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    )
    subprocess.run(
        [sys.executable, "-c", script, json.dumps(dict(backend.worker_options()))],
        env=env,
        check=True,
        timeout=300,
    )
    one = source()
    kernel, (x, out) = backend.load(tmp_path)[one.key], operands()
    kernel(x, out, 5000)
    torch.testing.assert_close(out, x + 1)


def test_the_key_of_a_kernel_does_not_depend_on_the_model_of_the_gpu(backend):
    assert backend.machine()["gpu"] == torch.cuda.get_device_name()
    assert backend.machine()["gpu"] not in str(backend.describe())
