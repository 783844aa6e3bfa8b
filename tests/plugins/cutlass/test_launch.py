"""Launching, with a driver that launches nothing and records everything."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cutlass_kernels import RESIDUAL, product
from polyfuse.base.errors import KernelLaunchError, KernelLoadError
from polyfuse.ir.kernel import Kernel
from polyfuse_cuda.driver import Driver
from polyfuse_cutlass.build.artifact import Artifact, write_unit
from polyfuse_cutlass.build.meta import KernelMeta
from polyfuse_cutlass.launch import launcher as launching
from polyfuse_cutlass.space import emit
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import Tiling


@dataclass
class FakeDriver:
    """The functions of the driver that are used, as Python functions."""

    launches: list[tuple[int, int, list[int]]] = field(default_factory=list)
    maps: list[tuple[int, list[int], list[int], list[int]]] = field(default_factory=list)
    loads: int = 0
    fail: dict[str, int] = field(default_factory=dict)
    parameters: int = 0
    described: int = 0
    version: int = 13000
    early: list[bool] = field(default_factory=list)

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = 0x1000
        return 0

    def cuModuleLoadData(self, module: Any, code: bytes) -> int:
        self.loads += 1
        return self.fail.get("load", 0)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 7
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        return 0

    def cuOccupancyMaxActiveClusters(self, found: Any, function: Any, config: Any) -> int:
        found._obj.value = 30
        return 0

    def cuTensorMapEncodeTiled(self, result: Any, kind: int, rank: int, address: Any, *rest: Any) -> int:
        assert result.value % 64 == 0 and rest[4:] == (0, 3, 3, 0)
        self.maps.append((address.value, list(rest[0]), list(rest[1]), list(rest[2])))
        ctypes.c_uint64.from_address(result.value).value = len(self.maps)
        return self.fail.get("map", 0)

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: Any) -> int:
        if self.fail.get("launch"):
            return self.fail["launch"]
        made = config.contents
        described = range(self.described)
        maps = [ctypes.c_uint64.from_address(parameters[i]).value for i in described]
        words = (ctypes.c_uint64 * self.parameters).from_address(parameters[len(described)])
        assert function.value == 7 and made.block[0] % 128 == 0
        attributes = [(made.attributes[i].id, made.attributes[i].value[0]) for i in range(made.count)]
        assert attributes in ([], [(6, 1)])
        self.early.append(bool(attributes))
        self.launches.append((made.grid[0], made.stream or 0, [*maps, *words]))
        return 0

    def cuGetErrorName(self, status: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR"
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"it went wrong"
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(launching, "driver", lambda: Driver(fake))
    monkeypatch.setattr(launching, "current_stream", lambda kind: lambda device: 0x5000 + device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda i: SimpleNamespace(multi_processor_count=132)
    )
    return fake


def loaded(kernel: Kernel, tiling: Tiling, driver: FakeDriver, folder: Any) -> launching.Kernel:
    source = emit(kernel, tiling.config, Target())
    meta = KernelMeta.parse(source.meta)
    (folder / "x.cubin").write_bytes(b"code")
    write_unit(folder, [Artifact(source.key, "k", source.symbol, "x.cubin", source.meta)], "none")
    driver.parameters, driver.described = len(kernel.args), len(meta.maps)
    return launching.load_unit(folder)[source.key]


def test_operands_are_described_and_passed(driver, tmp_path):
    launch = loaded(product(300, 264, 64, epilogue=RESIDUAL, dynamic=True), Tiling(1, 128), driver, tmp_path)
    sizes = (300 * 64, 264 * 64, 264, 300 * 264, 300 * 264)
    tensors = [torch.zeros(n, dtype=torch.bfloat16) for n in sizes]
    launch(*tensors, 300)
    ((grid, stream, words),) = driver.launches
    assert (grid, stream) == (3 * 3, 0x5000)
    assert words == [1, 2, *(t.data_ptr() for t in tensors), 300]
    assert driver.maps[0] == (tensors[0].data_ptr(), [64, 300, 1], [128, 16], [64, 128, 1])
    assert driver.maps[1] == (tensors[1].data_ptr(), [64, 264, 1], [128, 16], [64, 128, 1])


def test_what_comes_again_is_ready(driver, tmp_path):
    launch = loaded(product(64, 64, 64, dynamic=True), Tiling(1, 64, stages=4), driver, tmp_path)
    for _ in range(3):
        launch(16, 32, 48, 64)
    launch(16, 32, 48, 65)
    assert len(driver.launches) == 4 and len(driver.maps) == 2 * 3 and driver.loads == 1


def test_blocks_stay_for_further_tiles(driver, tmp_path):
    wide = loaded(product(8192, 8192, 64), Tiling(1, 256), driver, tmp_path)
    wide(16, 32, 48)
    pairs = loaded(product(8192, 8192, 64), Tiling(1, 256, across=2), driver, tmp_path)
    pairs(16, 32, 48)
    split = loaded(product(8192, 8192, 512), Tiling(1, 64, split=2, stages=6), driver, tmp_path)
    split(16, 32, 48)
    assert [grid for grid, *_ in driver.launches] == [132, 60, 64 * 128 * 2]


@pytest.mark.parametrize(("version", "early"), [(13000, True), (12020, False)])
def test_kernels_start_while_the_one_before_ends_if_the_driver_can(driver, tmp_path, version, early):
    driver.version = version
    launch = loaded(product(64, 64, 64), Tiling(1, 64, stages=4), driver, tmp_path)
    launch(16, 32, 48)
    assert (
        driver.early == [early]
        and "griddepcontrol.wait" in emit(product(64, 64, 64), Tiling(1, 64, stages=4).config, Target()).text
    )


def test_nothing_is_launched_for_no_rows(driver, tmp_path):
    launch = loaded(product(64, 64, 64, dynamic=True), Tiling(1, 64, stages=4), driver, tmp_path)
    launch(0, 32, 0, 0)
    assert driver.launches == [] and driver.maps == []


def test_what_fails_is_named(driver, tmp_path):
    launch = loaded(product(64, 64, 64), Tiling(1, 64, stages=4), driver, tmp_path)
    with pytest.raises(KernelLaunchError, match="takes 3 arguments, got 1"):
        launch(1)
    driver.fail["launch"] = 700
    with pytest.raises(KernelLaunchError, match="launching kernel k failed: it went wrong"):
        launch(16, 32, 48)
    driver.fail["map"] = 1
    with pytest.raises(KernelLaunchError, match="describing an operand"):
        launch(16, 32, 64)
    driver.fail["load"] = 200
    with pytest.raises(KernelLoadError, match="loading kernel"):
        loaded(product(64, 64, 64), Tiling(1, 64, stages=4), driver, tmp_path)


def test_a_damaged_folder_is_named(tmp_path):
    with pytest.raises(KernelLoadError, match="damaged"):
        launching.load_unit(tmp_path)


def test_launches_show_in_the_profiler(driver, tmp_path):
    launch = loaded(product(64, 64, 64), Tiling(1, 64, stages=4), driver, tmp_path)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        launch(16, 32, 48)
    assert "k" in [event.name for event in profile.events()] and len(driver.launches) == 1
