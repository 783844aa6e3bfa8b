"""Launchers against a driver that records what it is asked: the native one, and the plain one."""

from __future__ import annotations

import gc
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fake_gpu import FakeDriver
from polyfuse.base.errors import KernelBuildError, KernelLaunchError, KernelLoadError
from polyfuse.base.settings import Settings
from polyfuse_triton.build.artifact import Artifact, Variant, write_unit
from polyfuse_triton.build.meta import KernelMeta, MetaArg
from polyfuse_triton.launch import launcher as launcher_module
from polyfuse_triton.launch import loading
from polyfuse_triton.launch.launcher import Launcher, LauncherSource
from polyfuse_triton.launch.native import NativeLauncher, build_library, library_path
from polyfuse_triton.launch.plain import PlainLauncher
from polyfuse_triton.launch.services import Services, torch_services
from requirements import needs_gcc

pytestmark = needs_gcc

META = KernelMeta(
    args=(
        MetaArg("in0", "ptr", "*fp32", True),
        MetaArg("out0", "ptr", "*fp32"),
        MetaArg("ks0", "size", "i32"),
        MetaArg("ks1", "size", "i64"),
    ),
    constexprs=(("XBLOCK", 1024),),
    num_warps=4,
    num_stages=1,
    grid=("(ks0 * ks1 + 1023) // 1024", "max(ks0, 2)", 1),
)
SYMBOL = "k_fused_add_abcdefghij"


class Watched:
    """A context that the profiler would show."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.left = 0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self.names.append(name)
        try:
            yield
        finally:
            self.left += 1


@pytest.fixture
def services(driver: FakeDriver) -> Services:
    # four arguments, and two addresses of scratch memory
    driver.reset(6)
    memory = []

    def allocate(size: int) -> torch.Tensor:
        memory.append(torch.empty(size, dtype=torch.uint8))
        return memory[-1]

    return replace(
        torch_services(),
        driver=str(driver.path),
        stream_function=None,
        stream=lambda index: 0x7000 + index,
        current_device=lambda: 0,
        allocate=allocate,
        profiler=({"on": False}, "on"),
        annotate=Watched(),
    )


@pytest.fixture(params=["native", "plain"])
def make(request: pytest.FixtureRequest, services: Services, library: Path) -> Callable[..., Launcher]:
    def launcher(**changes: object) -> Launcher:
        changed = replace(services, **changes)  # type: ignore[arg-type]
        return NativeLauncher(library, changed) if request.param == "native" else PlainLauncher(changed)

    return launcher


def artifact(folder: Path, meta: KernelMeta = META, code: bytes = b"\0code\0", **changes: object) -> Artifact:
    variants = []
    for arch in (80, 90):
        (folder / f"{arch}.cubin").write_bytes(code)
        variant = Variant(arch, f"{arch}.cubin", 1024 * (arch - 79), 4, 32, 0)
        variants.append(replace(variant, **changes))  # type: ignore[arg-type]
    return Artifact("key", "fused_add", SYMBOL, meta, tuple(variants))


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(64), torch.randn(65)[1:]


def test_arguments_grid_and_stream(make, driver, tmp_path):
    kernel = make().kernel(artifact(tmp_path), tmp_path)
    a, b = tensors()
    assert kernel(a, b, 3, 5000) is None
    kernel(a.data_ptr(), b.data_ptr() + 4, -1, 1 << 33)
    kernel(a.data_ptr(), b.data_ptr() + 4, 1, 1 << 33)
    first, second = driver.launches()
    assert first.symbol == SYMBOL and first.threads == 128 and first.stream == 0x7000
    assert first.grid == (15, 3, 1)
    # the two addresses of scratch memory follow, here without any
    assert first.values[:6] == (a.data_ptr(), b.data_ptr(), 3, 5000, 0, 0)
    assert second.values[1:4] == (b.data_ptr() + 4, 1, 1 << 33)


def test_the_stream_by_a_native_function(make, driver, tmp_path):
    kernel = make(stream_function=driver.stream_function, stream=lambda index: 0x5000 + index)
    kernel.kernel(artifact(tmp_path), tmp_path)(*tensors(), 1, 1)
    assert driver.launches()[0].stream == 0x5000


def test_empty_grids_start_nothing(make, driver, tmp_path):
    kernel = make().kernel(artifact(tmp_path), tmp_path)
    for sizes in ((0, 5), (5, 0), (0, 0)):
        kernel(*tensors(), *sizes)
    assert driver.launches() == []


def test_grids_beyond_the_limits_are_refused(make, driver, tmp_path):
    kernel = make().kernel(artifact(tmp_path), tmp_path)
    with pytest.raises(KernelLaunchError, match=r"fused_add would need a grid of .* by 70000 by 1"):
        kernel(*tensors(), 70000, 1)
    with pytest.raises(KernelLaunchError, match="fused_add would need a grid of 2251799813685248 by 2"):
        kernel(*tensors(), 1, 1 << 61)
    assert driver.launches() == []


def test_the_guard(make, driver, tmp_path):
    meta = replace(META, guard="ks0 * ks1 < 2147483648 and ks0 >= 1")
    kernel = make().kernel(artifact(tmp_path, meta), tmp_path)
    kernel(*tensors(), 2, 3)
    with pytest.raises(KernelLaunchError, match=r"compiled for sizes of which ks0 \* ks1 < 2147483648"):
        kernel(*tensors(), 2, 1 << 31)
    assert len(driver.launches()) == 1


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((4, 8, 1, 1), KernelLaunchError, "argument in0 of kernel fused_add is no multiple of 16"),
        ((16, 8, 1 << 31, 1), KernelLaunchError, "argument ks0 of kernel fused_add does not fit in 32 bits"),
        ((16, "text", 1, 1), KernelLaunchError, "argument out0 of kernel fused_add is no tensor with memory"),
        ((16, 8, 1), TypeError, "kernel fused_add takes 4 arguments, got 3"),
        ((16, 8, 1.5, 1), (TypeError, AttributeError), "float"),
    ],
)
def test_arguments_that_do_not_fit(make, driver, tmp_path, args, error, words):
    kernel = make().kernel(artifact(tmp_path), tmp_path)
    with pytest.raises(error, match=words):
        kernel(*args)
    assert driver.launches() == []
    kernel(16, 8, 1, 1)
    assert len(driver.launches()) == 1


def test_floats_and_multiples(make, driver, tmp_path):
    args = (
        MetaArg("a", "size", "fp32"),
        MetaArg("b", "size", "fp64"),
        MetaArg("n", "size", "i32", True),
    )
    driver.reset(len(args))
    kernel = make().kernel(artifact(tmp_path, replace(META, args=args, grid=(1, 1, 1))), tmp_path)
    kernel(1.5, -2.25, 32)
    launched = driver.launches()[0]
    assert launched.float32(0) == 1.5 and launched.float64(1) == -2.25 and launched.values[2] == 32
    with pytest.raises(KernelLaunchError, match="argument n of kernel fused_add is no multiple of 16"):
        kernel(1.5, 1.0, 33)


def test_each_device_loads_its_own_code_once(make, driver, tmp_path):
    kernel = make().kernel(artifact(tmp_path), tmp_path)
    before = driver.loads
    for index in (0, 1, 0, 1):
        driver.use_device(index)
        kernel(*tensors(), 1, 1)
    found = driver.launches()
    assert driver.loads - before == 2
    assert [item.stream for item in found] == [0x7000, 0x7001, 0x7000, 0x7001]
    # device 0 is of compute capability 9.0, device 1 of 8.6, which runs code for 8.0
    assert [item.shared for item in found] == [11 * 1024, 1024, 11 * 1024, 1024]


def test_a_thread_without_a_context_takes_that_of_the_current_device(make, driver, tmp_path):
    kernel = make(current_device=lambda: 1).kernel(artifact(tmp_path), tmp_path)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            kernel(16, 16, 1, 1)
        except BaseException as error:
            failures.append(error)

    driver.use_device(0)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failures and driver.launches()[0].stream == 0x7001


def test_a_device_without_code(make, driver, tmp_path):
    only = artifact(tmp_path)
    kernel = make().kernel(replace(only, variants=only.variants[:1]), tmp_path)
    with pytest.raises(KernelLoadError, match=r"no code for device 0, of compute capability 9\.0"):
        kernel(*tensors(), 1, 1)
    with pytest.raises(KernelLoadError, match="fake words"):
        driver.use_device(None)
        make(current_device=lambda: 7).kernel(only, tmp_path)(*tensors(), 1, 1)


def test_damaged_code_shows_when_it_is_prepared(make, tmp_path):
    launcher = make()
    kernel = launcher.kernel(artifact(tmp_path, code=b"bad"), tmp_path)
    with pytest.raises(
        KernelLoadError, match=r"fused_add could not be loaded: invalid image \(CUDA_ERROR_FAKE\)"
    ):
        launcher.prepare(kernel)
    good = launcher.kernel(artifact(tmp_path), tmp_path)
    launcher.prepare(good)


def test_much_shared_memory_is_asked_for(make, driver, tmp_path):
    kernel = make().kernel(artifact(tmp_path, shared_bytes=100_000), tmp_path)
    kernel(*tensors(), 1, 1)
    assert driver.launches()[0].shared == 100_000 and driver.launches()[0].allowed == 100_000
    too_much = make().kernel(artifact(tmp_path, shared_bytes=400_000), tmp_path)
    with pytest.raises(KernelLoadError, match="could not be loaded"):
        too_much(*tensors(), 1, 1)


def test_little_shared_memory_is_not(make, driver, tmp_path):
    make().kernel(artifact(tmp_path, shared_bytes=48 * 1024), tmp_path)(*tensors(), 1, 1)
    assert driver.launches()[0].allowed == 0


def test_a_failed_launch_names_the_kernel(make, driver, tmp_path):
    kernel = make().kernel(artifact(tmp_path), tmp_path)
    kernel(*tensors(), 1, 1)
    driver.fail(700)
    with pytest.raises(KernelLaunchError, match=r"kernel fused_add could not be launched: fake words"):
        kernel(*tensors(), 1, 1)
    driver.fail(0)
    kernel(*tensors(), 1, 1)
    assert len(driver.launches()) == 2


def test_without_memory_it_is_asked_for_once_more(make, driver, tmp_path):
    """Loading or launching: with what torch keeps for later, or it ends in torch's own error."""
    freed: list[int] = []
    for before in ([], [0]):
        kernel = make(free_memory=lambda: freed.append(1)).kernel(artifact(tmp_path), tmp_path)
        for _ in before:
            kernel(*tensors(), 1, 1)
        driver.has_no_memory(2)
        with pytest.raises(torch.OutOfMemoryError, match=r"kernel fused_add could not be .*fake words"):
            kernel(*tensors(), 1, 1)
        assert freed == [1]
        driver.has_no_memory(1)
        kernel(*tensors(), 1, 1)
        assert len(freed) == 2
        freed.clear()


def test_clusters_and_cooperative_grids(make, driver, tmp_path):
    meta = replace(META, num_ctas=4, cooperative=True)
    make().kernel(artifact(tmp_path, meta), tmp_path)(*tensors(), 3, 5000)
    launched = driver.launches()[0]
    assert launched.grid == (60, 3, 1)
    assert launched.attributes == ((2, 1), (4, 4), (5, 1))
    assert launched.values[:4][2:] == (3, 5000)


def test_programs_of_one_row_start_as_a_cluster(make, driver, tmp_path):
    meta = replace(META, cluster=13)
    make().kernel(artifact(tmp_path, meta), tmp_path)(*tensors(), 3, 5000)
    launched = driver.launches()[0]
    assert launched.grid == (15 * 13, 3, 1) and launched.attributes == ((4, 13), (5, 1))


def test_what_waits_itself_starts_early(make, driver, tmp_path):
    kernel = make().kernel(artifact(tmp_path, starts_early=True), tmp_path)
    kernel(*tensors(), 3, 5000)
    make().kernel(artifact(tmp_path, replace(META, cluster=2), starts_early=True), tmp_path)(
        *tensors(), 3, 50
    )
    first, second = driver.launches()
    assert first.attributes == ((6, 1),) and second.attributes == ((4, 2), (5, 1), (6, 1))
    assert first.grid == (15, 3, 1) and first.values[2:4] == (3, 5000) and first.threads == 128


def test_a_driver_that_cannot_record_early_starts_gets_none(make, driver, tmp_path):
    driver.library.fake_version(12020)
    try:
        kernel = make().kernel(artifact(tmp_path, starts_early=True), tmp_path)
    finally:
        driver.library.fake_version(13000)
    kernel(*tensors(), 3, 5000)
    assert driver.launches()[0].attributes == ()


def test_scratch_memory_is_allocated_for_each_launch(make, driver, tmp_path):
    sizes: list[int] = []
    allocated: list[torch.Tensor] = []

    def allocate(size: int) -> torch.Tensor:
        sizes.append(size)
        allocated.append(torch.empty(size, dtype=torch.uint8))
        return allocated[-1]

    kernel = make(allocate=allocate).kernel(
        artifact(tmp_path, scratch_bytes=256, scratch_align=128), tmp_path
    )
    kernel(*tensors(), 1, 1)
    address = driver.launches()[0].values[4]
    assert sizes == [2 * 256 + 128]
    assert address % 128 == 0 and 0 <= address - allocated[0].data_ptr() < 128


def test_memory_that_begins_as_zeros_follows_the_arguments(make, driver, tmp_path):
    allocated: list[torch.Tensor] = []

    def allocate(size: int) -> torch.Tensor:
        allocated.append(torch.full((size,), 7, dtype=torch.uint8))
        return allocated[-1]

    meta = replace(META, zeroed="2 + 4 * ks0")
    driver.reset(7)
    kernel = make(allocate=allocate).kernel(
        artifact(tmp_path, meta, scratch_bytes=256, scratch_align=128), tmp_path
    )
    kernel(*tensors(), 3, 1)
    shared, scratch = driver.launches()[0].values[4:6]
    words, memory = allocated
    begin = shared - words.data_ptr()
    assert shared % 16 == 0 and 0 <= begin < 16
    assert not words[begin : begin + 14 * 8].any() and int((words == 7).sum()) == len(words) - 14 * 8
    assert scratch % 128 == 0 and 0 <= scratch - memory.data_ptr() < 128


def test_the_profiler_sees_names_only_while_it_records(make, driver, services, tmp_path):
    flags = {"on": False}
    kernel = make(profiler=(flags, "on")).kernel(artifact(tmp_path), tmp_path)
    kernel(*tensors(), 1, 1)
    assert services.annotate.names == []
    flags["on"] = True
    kernel(*tensors(), 1, 1)
    assert services.annotate.names == ["fused_add"] and services.annotate.left == 1
    driver.fail(1)
    with pytest.raises(KernelLaunchError, match="could not be launched"):
        kernel(*tensors(), 1, 1)
    assert services.annotate.left == 2


def test_torchs_profiler_shows_the_kernel(make, driver, tmp_path):
    real = torch_services()
    kernel = make(profiler=real.profiler, annotate=real.annotate).kernel(artifact(tmp_path), tmp_path)
    with torch.profiler.profile() as profile:
        kernel(*tensors(), 1, 1)
    assert "fused_add" in {event.name for event in profile.events()}


def test_the_native_launcher_unloads_what_is_forgotten(services, library, driver, tmp_path):
    kernel = NativeLauncher(library, services).kernel(artifact(tmp_path), tmp_path)
    kernel(*tensors(), 1, 1)
    gc.collect()
    before = driver.unloads
    del kernel
    gc.collect()
    assert driver.unloads == before + 1


def test_what_a_captured_graph_launches_stays_loaded(services, library, driver, tmp_path):
    kernel = NativeLauncher(library, services).kernel(artifact(tmp_path), tmp_path)
    kernel(*tensors(), 1, 1)
    driver.capture(True)
    kernel(*tensors(), 1, 1)
    driver.capture(False)
    kernel(*tensors(), 1, 1)
    gc.collect()
    before = driver.unloads
    del kernel
    gc.collect()
    assert driver.unloads == before


def test_without_a_driver(services, library, tmp_path):
    absent = replace(services, driver=str(tmp_path / "libcuda.so.1"))
    for launcher in (lambda: NativeLauncher(library, absent), lambda: PlainLauncher(absent)):
        with pytest.raises(KernelLoadError, match="the driver cannot be used"):
            launcher()


class TestSource:
    def settings(self, folder: Path) -> Settings:
        return Settings(cache_dir=str(folder))

    def test_a_unit_is_loaded_ready(self, driver, services, tmp_path, monkeypatch):
        monkeypatch.setattr("polyfuse_triton.launch.services.torch_services", lambda: services)
        source = LauncherSource(self.settings(tmp_path / "cache"))
        source.start()
        write_unit(tmp_path, [artifact(tmp_path)], "test")
        before = driver.loads
        kernels = source.load(tmp_path)
        assert driver.loads == before + 1
        kernels["key"](*tensors(), 1, 1)
        assert driver.launches()[0].symbol == SYMBOL
        assert library_path(tmp_path / "cache").exists()
        # there now: nothing is built again
        monkeypatch.setattr("polyfuse_triton.launch.native.run_program", None)
        assert isinstance(LauncherSource(self.settings(tmp_path / "cache")).get(), NativeLauncher)

    def test_no_compiler_means_a_slow_launcher_and_one_warning(
        self, driver, services, tmp_path, monkeypatch, caplog
    ):
        monkeypatch.setattr("polyfuse_triton.launch.services.torch_services", lambda: services)
        monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
        warnings: list[str] = []
        monkeypatch.setattr(launcher_module, "warn_once", lambda area, text, **_: warnings.append(text))
        source = LauncherSource(self.settings(tmp_path / "cache"))
        write_unit(tmp_path, [artifact(tmp_path)], "test")
        source.load(tmp_path)["key"](*tensors(), 1, 1)
        assert isinstance(source.get(), PlainLauncher) and len(driver.launches()) == 1
        assert len(warnings) == 1 and "slow launcher" in warnings[0] and "CXX" in warnings[0]

    def test_packages_bring_the_launcher_along(self, driver, services, library, tmp_path, monkeypatch):
        monkeypatch.setattr("polyfuse_triton.launch.services.torch_services", lambda: services)
        monkeypatch.setattr(loading, "_SHARED", [])
        monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
        monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
        shutil.copy(library, tmp_path / loading.LAUNCHER)
        write_unit(tmp_path, [artifact(tmp_path)], "test")
        loading.load_packaged(tmp_path, {})["key"](*tensors(), 1, 1)
        assert isinstance(loading._SHARED[0].get(), NativeLauncher) and len(driver.launches()) == 1

    def test_where_the_launcher_lies(self, tmp_path, monkeypatch):
        source = LauncherSource(self.settings(tmp_path / "cache"))
        assert source.library() == library_path(tmp_path / "cache")
        monkeypatch.setenv("CXX", str(tmp_path / "no-compiler"))
        assert LauncherSource(self.settings(tmp_path / "other")).library() is None

    def test_a_compiler_that_fails_leaves_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setenv("CXX", "false")
        with pytest.raises(KernelBuildError):
            build_library(library_path(tmp_path))
        assert not list(tmp_path.rglob("*.so")) and not list(tmp_path.rglob(".*"))


def test_values_are_read_as_little_endian():
    """What the tests above rely on: 32 bits are the lower half of 64."""
    assert struct.pack("=i", 7) == struct.pack("=q", 7)[:4]
