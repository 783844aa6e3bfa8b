"""Kernels are compiled for AMD's GPUs, which nobody here has: what comes out is code for them."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from house.source_tree import ROOT
from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.base.errors import InvalidOptionError, KernelBuildError
from polyfuse.ir.text.print import text
from polyfuse_triton.amd.__main__ import main
from polyfuse_triton.amd.chips import CHIPS, chip_of, table
from polyfuse_triton.amd.compile import compile_for
from triton_gemms import int4_text, int8_text, kernel_of
from triton_kernels import KERNELS, kernel

AMDGPU = 224
"""The machine in the head of an ELF file."""


def machine(code: bytes) -> int:
    assert code[:4] == b"\x7fELF"
    return struct.unpack_from("<H", code, 18)[0]


@pytest.mark.quick(2)
@pytest.mark.parametrize("chip", ("gfx942", "gfx1100"))
@pytest.mark.parametrize("name", ("softmax", "bias_gelu", "grouped_rows", "scatter_add"))
def test_code_for_amds_gpus(name: str, chip: str) -> None:
    made = compile_for(chip_of(chip), kernel(name))
    assert machine(made.code) == AMDGPU
    assert re.search(rf'\.amdgcn_target "amd.*-{chip}"', made.assembly)
    assert made.shared_bytes <= CHIPS[chip].shared_bytes


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_code_for_every_chip(name: str, chip: str) -> None:
    assert machine(compile_for(chip_of(chip), kernel(name)).code) == AMDGPU


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "text", (int4_text(8), int4_text(64), int8_text(64, side=64)), ids=("8", "64", "bytes")
)
def test_narrow_weights_are_multiplied_by_matrix_instructions(text: str) -> None:
    made = compile_for(chip_of("gfx942"), kernel_of(text))
    assert "v_mfma_f32" in made.assembly
    assert "scratch_" not in made.assembly
    assert made.shared_bytes <= CHIPS["gfx942"].shared_bytes


def test_memory_is_read_in_wide_chunks_and_exponentials_are_instructions() -> None:
    softmax = compile_for(chip_of("gfx942"), kernel("softmax")).assembly
    assert re.search(r"(global|buffer)_load_dwordx4", softmax)
    assert re.search(r"(global|buffer)_store_dwordx4", softmax)
    assert "v_exp_f32" in softmax


def test_what_a_chip_has_no_memory_for_is_refused() -> None:
    small = replace(chip_of("gfx942"), shared_bytes=64)
    with pytest.raises(KernelBuildError, match="bytes of shared memory, and gfx942 has 64"):
        compile_for(small, kernel("transpose"))


def test_a_kernel_of_a_dump_is_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernel0.ir"
    file.write_text(text(kernel("rms_norm")))
    assert main([str(file), "--chip", "gfx950", "--out", str(tmp_path / "out")]) == 0
    assert machine((tmp_path / "out" / "kernel0.gfx950.hsaco").read_bytes()) == AMDGPU
    assert "not run" in capsys.readouterr().out
    assert main([str(file), "--chip", "gfx000"]) == 1
    assert "gfx942" in capsys.readouterr().err


def test_unknown_chips_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="gfx906"):
        chip_of("gfx906")


def test_the_documented_chips_are_these() -> None:
    assert table() in (ROOT / "docs" / "backends" / "triton.md").read_text(encoding="utf-8")
