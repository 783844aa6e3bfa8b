"""Matmuls go through Triton's compiler for each architecture, and use its matrix instructions."""

from __future__ import annotations

import re

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import configs, emit
from polyfuse_triton.target import known_target
from triton_gemms import Case, convolution, kernel_of

INSTRUCTIONS = {80: "mma.sync", 90: "wgmma", 100: "tcgen05.mma"}
TYPES = {
    "bf16": Case(1024, 1024, 1024, right_by_rows=False),
    "f16": Case(1024, 1024, 1024, dtype="f16", left_by_rows=False),
    "tf32": Case(1024, 1024, 1024, dtype="f32", kind="dot_tf32"),
}


def compiled(case, arch, config=None):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(kernel_of(case), config, known_target(f"sm_{arch}"))
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    return compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False)


@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", INSTRUCTIONS)
def test_matrix_instructions_and_copies_past_registers(arch):
    made = compiled(TYPES["bf16"], arch)
    assert INSTRUCTIONS[arch] in made.ptx and "cp.async" in made.ptx
    assert made.spilled_bytes == 0
    assert not re.search(r"ld\.global", made.ptx)


def test_few_rows_fill_the_instruction_with_the_weight():
    made = compiled(Case(16, 4096, 2048, right_by_rows=False, out="bf16"), 90)
    assert "wgmma.mma_async.sync.aligned.m64n16k16" in made.ptx and "cp.async" in made.ptx
    assert made.spilled_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", INSTRUCTIONS)
@pytest.mark.parametrize("name", ["f16", "tf32"])
def test_other_types_have_instructions(name, arch):
    made = compiled(TYPES[name], arch)
    assert INSTRUCTIONS[arch] in made.ptx or "mma.sync" in made.ptx
    assert made.spilled_bytes == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "case",
    [
        Case(1024, 1024, 1024, dtype="i8", out="i32"),
        Case(1024, 1024, 1024, dtype="f8e4m3", right_by_rows=False, out="bf16", epilogue="scaled"),
        Case(512, 512, 512, dtype="f64"),
        Case(512, 512, 512, dtype="f32"),
        Case(512, 512, 512, prologue="dequantise"),
        Case(1000, 1000, 1000, epilogue="bias_gelu"),
        Case("s0~512", 512, 512, right_by_rows=False),
        convolution(8, 64, 128, 28, last=True),
    ],
    ids=["i8", "f8", "f64", "f32", "dequantise", "odd", "dynamic", "convolution"],
)
def test_compiles_without_spilling(case):
    assert compiled(case, 90).spilled_bytes == 0


@pytest.mark.slow
def test_rows_of_unknown_length_are_copied_in_wide_chunks_where_they_are_aligned():
    made = compiled(Case("s0~4096", "s1~4096", "s2~4096"), 90)
    assert "cp.async" in made.ptx and made.spilled_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("m", [16, 256, 4096])
def test_every_candidate_compiles(m):
    case = Case(m, 4096, 1024, right_by_rows=False, epilogue="bias_gelu")
    for config in configs(kernel_of(case), known_target("sm_90")):
        # what is done with the sums may need more registers than there are, once
        assert compiled(case, 90, config).spilled_bytes <= 512, str(config)
