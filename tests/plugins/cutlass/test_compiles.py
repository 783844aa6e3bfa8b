"""Generated kernels, compiled for Hopper, and their texts."""

from __future__ import annotations

import re
import subprocess

import pytest

from cutlass_kernels import GELU, RESIDUAL, SCALED, generated_part, nvcc_options, product
from polyfuse.base.errors import KernelBuildError
from polyfuse.plugin import Source
from polyfuse_cuda.toolchain import find_compiler
from polyfuse_cutlass.build.artifact import read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.space import emit
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import Tiling
from requirements import needs_nvcc

CASES = {
    "wide_gelu": (product(512, 1024, 512, epilogue=GELU), Tiling(1, 256, across=2)),
    "pingpong_residual": (
        product(512, 1000, 512, epilogue=RESIDUAL, right="columns"),
        Tiling(2, 128, pingpong=True, stages=6, fragment=64),
    ),
    "few_rows_split": (
        product(13, 1024, 4096),
        Tiling(1, 16, consumers=1, split=4, stages=8, swap=True),
    ),
    "dynamic_batch": (product(100, 72, 64, batch=3, shared=True, dynamic=True), Tiling(1, 64, stages=4)),
    "integers": (product(128, 128, 128, dtype="i8", out="f32"), Tiling(1, 128)),
    "even_shares": (
        product(16, 14336, 4096, epilogue=GELU),
        Tiling(2, 16, consumers=1, stages=12, swap=True, used=112),
    ),
    "narrow_floats": (product(512, 1024, 512, dtype="f8e4m3"), Tiling(1, 256, across=2)),
    "narrow_floats_at_once": (product(512, 1024, 512, dtype="f8e4m3"), Tiling(1, 192, across=2)),
    "scaled_batch": (
        product(512, 1000, 512, dtype="f8e4m3", batch=2, epilogue=SCALED),
        Tiling(1, 176, stages=5),
    ),
    "eager": (product(128, 128, 128, epilogue=GELU, numerics="eager"), Tiling(1, 128)),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name, golden):
    kernel, tiling = CASES[name]
    source = emit(kernel, tiling.config, Target())
    golden(f"cutlass/{name}.txt", generated_part(source))


@pytest.mark.quick(1)
@needs_nvcc
@pytest.mark.parametrize("name", CASES)
def test_compiles_without_spills(tmp_path, name):
    kernel, tiling = CASES[name]
    source = emit(kernel, tiling.config, Target())
    build_in_worker([source], tmp_path, nvcc_options())
    artifact = read_unit(tmp_path)[source.key]
    assert (tmp_path / artifact.file).stat().st_size > 1000
    assert artifact.spilled == 0 and not artifact.serial
    assert artifact.meta == source.meta and artifact.symbol == source.symbol


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize(
    "tiling", (Tiling(2, 128, pingpong=True, stages=6), Tiling(1, 256)), ids=("pingpong", "wide")
)
def test_matmuls_do_not_wait_for_each_other_where_the_depth_is_a_symbol(tmp_path, tiling):
    source = emit(product(512, 1024, 512, deep=True), tiling.config, Target())
    build_in_worker([source], tmp_path, nvcc_options())
    assert not read_unit(tmp_path)[source.key].serial


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("batch", (0, 96))
def test_neighbours_are_stored_at_once(tmp_path, batch):
    """The compiler takes an assignment of 16 bytes apart where it sees reason to."""
    kernel = product(512, 512, 64, batch=batch, epilogue=RESIDUAL)
    source = emit(kernel, Tiling(1, 256).config, Target())
    (tmp_path / "kernel.cu").write_text(source.rendered(), encoding="utf-8")
    command = [find_compiler("nvcc").path, "-ptx", "-arch=compute_90a", "-std=c++17", "kernel.cu"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=600)
    stores = re.findall(r"st\.global\S*", (tmp_path / "kernel.ptx").read_text(encoding="utf-8"))
    assert stores and all(".v4." in store for store in stores)


@needs_nvcc
def test_a_text_that_is_wrong_is_shown_with_the_command(tmp_path):
    kernel, tiling = CASES["wide_gelu"]
    meta = emit(kernel, tiling.config, Target()).meta
    with pytest.raises(KernelBuildError) as caught:
        build_in_worker([Source("broken", "this is no kernel", "cuda", meta=meta)], tmp_path, nvcc_options())
    assert "nvcc" in caught.value.command[0] and "this" in caught.value.output
