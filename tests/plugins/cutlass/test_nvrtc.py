"""Kernels compiled with NVRTC, as where there is no nvcc; none of it needs a GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from cutlass_kernels import GELU, RESIDUAL, product
from polyfuse.base.errors import BackendUnavailableError, KernelBuildError
from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.plugin import Source
from polyfuse.workers import BuildPool
from polyfuse_cuda import nvrtc
from polyfuse_cuda.toolchain import Compiler, find_compiler
from polyfuse_cutlass.backend import CutlassBackend
from polyfuse_cutlass.build.artifact import Artifact, read_unit
from polyfuse_cutlass.build.toolchain import build_in_worker
from polyfuse_cutlass.space import emit
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import Tiling
from requirements import NVRTC, needs_nvcc

KERNELS = {
    "gelu": (product(512, 1024, 512, epilogue=GELU), Tiling(1, 256, across=2)),
    "residual": (
        product(512, 1000, 512, epilogue=RESIDUAL, right="columns"),
        Tiling(2, 128, pingpong=True, stages=6, fragment=64),
    ),
    "split": (product(13, 1024, 4096), Tiling(1, 16, consumers=1, split=4, stages=8, swap=True)),
    "dynamic": (product(100, 72, 64, batch=3, shared=True, dynamic=True), Tiling(1, 64, stages=4)),
    "integers": (product(128, 128, 128, dtype="i8", out="f32"), Tiling(1, 128)),
    "narrow floats": (product(512, 1024, 512, dtype="f8e4m3"), Tiling(1, 256, across=2)),
}


@pytest.fixture(scope="module")
def library() -> Compiler:
    try:
        return find_compiler("nvrtc")
    except BackendUnavailableError as error:
        pytest.skip(f"{NVRTC}: {error.cause}")


def compiled(source: Source, compiler: Compiler, folder: Path) -> Artifact:
    folder.mkdir(exist_ok=True)
    options = {"compiler": compiler.kind, "path": compiler.path, "version": compiler.version}
    build_in_worker([source], folder, {**options, "arch": "sm_90a"})
    return read_unit(folder)[source.key]


def facts(code: bytes) -> tuple[bytes, int, int, int]:
    """Of machine code as a file: its mark, its class, the machine, and the machine's model."""
    machine, flags = struct.unpack_from("<H", code, 18)[0], struct.unpack_from("<I", code, 48)[0]
    return code[:4], code[4], machine, flags


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kind_of_kernel_compiles(library, tmp_path, name):
    kernel, tiling = KERNELS[name]
    source = emit(kernel, tiling.config, Target())
    artifact = compiled(source, library, tmp_path)
    code = (tmp_path / artifact.file).read_bytes()
    mark, _, machine, _ = facts(code)
    assert mark == b"\x7fELF" and machine == 190  # EM_CUDA
    assert artifact.symbol == source.symbol and artifact.symbol.encode() + b"\0" in code
    assert artifact.meta == source.meta
    assert artifact.spilled == 0 and not artifact.serial


@pytest.mark.slow  # compiles once more by the other compiler; its own code is looked at above
@needs_nvcc
def test_code_is_for_the_same_machine_as_nvccs(library, tmp_path):
    kernel, tiling = KERNELS["gelu"]
    source = emit(kernel, tiling.config, Target())
    found = [
        facts((tmp_path / one.kind / compiled(source, one, tmp_path / one.kind).file).read_bytes())
        for one in (library, find_compiler("nvcc"))
    ]
    assert found[0] == found[1]


def test_spills_are_seen(library, tmp_path):
    """What `review` judges a kernel by is in what the library says."""
    text = 'extern "C" __global__ void __launch_bounds__(1024, 2) POLYFUSE_KERNEL(float* p) {\n'
    text += (
        "  float v[120];\n#pragma unroll\n  for (int i = 0; i < 120; ++i) v[i] = p[i * 32 + threadIdx.x];\n"
    )
    text += "  __syncthreads();\n#pragma unroll\n"
    text += "  for (int i = 0; i < 120; ++i) p[threadIdx.x * 120 + i] = v[i] * v[119 - i];\n}\n"
    meta = emit(*_plain(), Target()).meta
    assert compiled(Source("greedy", text, "cuda", meta=meta), library, tmp_path).spilled > 0


def _plain() -> tuple[object, object]:
    kernel, tiling = KERNELS["gelu"]
    return kernel, tiling.config


def test_a_text_that_is_wrong_is_shown_with_what_the_library_says(library, tmp_path):
    meta = emit(*_plain(), Target()).meta
    with pytest.raises(KernelBuildError, match="NVRTC could not compile kernel broken") as caught:
        compiled(Source("broken", "int wrong = missing;", "cuda", meta=meta), library, tmp_path)
    assert caught.value.command[0] == "nvrtc" and "-arch=sm_90a" in caught.value.command
    assert "missing" in caught.value.output and "error" in caught.value.output


def test_it_compiles_in_worker_processes(library, tmp_path, monkeypatch):
    """A library cannot be stopped: what has time limits is the process around it."""

    def here(*_: object) -> None:
        raise AssertionError("compiled in this process")

    monkeypatch.setattr(nvrtc, "compiled", here)
    settings = Settings.resolve(
        None, {"cutlass.target": "sm_90", "cutlass.compiler": "nvrtc", "build_workers": 1}
    )
    backend = CutlassBackend(settings)
    good = backend.emit(KERNELS["split"][0], KERNELS["split"][1].config)
    bad = Source("broken", "int wrong = missing;", "cuda", meta=good.meta)
    with BuildPool(settings) as pool:
        locations = pool.submit(backend, [good, bad], KernelStore(tmp_path)).locations()
    assert backend.review(locations[good.key].folder, good.key)
    assert isinstance(locations[bad.key], KernelBuildError) and "missing" in locations[bad.key].output


def test_where_wheels_keep_it(tmp_path, monkeypatch):
    """Those for CUDA 13 and those for CUDA 12; not the variants beside them."""
    for folder in ("cu13/lib", "cuda_nvrtc/lib", "cublas/lib"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"):
        (tmp_path / file).touch()
    for file in ("cu13/lib/libnvrtc.alt.so.13", "cu13/lib/libnvrtc-builtins.so.13.0"):
        (tmp_path / file).touch()
    (tmp_path / "cublas/lib/libcublas.so.13").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(nvrtc, "find_spec", lambda name: spec if name == "nvidia" else None)
    found = [Path(name).relative_to(tmp_path).as_posix() for name in nvrtc._in_wheels()]
    assert found == ["cu13/lib/libnvrtc.so.13", "cuda_nvrtc/lib/libnvrtc.so.12"]
    monkeypatch.setattr(nvrtc, "find_spec", lambda name: None)
    assert nvrtc._in_wheels() == []
