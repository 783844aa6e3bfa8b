"""Generated kernels go through Triton's compiler for each architecture, and use the GPU as intended."""

from __future__ import annotations

import re

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import configs, emit
from polyfuse_triton.target import known_target
from triton_kernels import KERNELS, kernel

OTHERS = (80, 100)
VARIED = ("softmax", "bias_gelu", "transpose_bf16", "argmax", "scan_long", "scatter_add")


def compiled(name: str, arch: int, config=None):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(kernel(name), config, known_target(f"sm_{arch}"))
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    return compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False)


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_without_spilling(name):
    made = compiled(name, 90)
    assert made.code and made.spilled_bytes == 0


@pytest.mark.quick(3)
@pytest.mark.parametrize("arch", OTHERS)
@pytest.mark.parametrize(
    "name", ["softmax", "bias_gelu", "transpose_bf16", "argmax", "scan_long", "scatter_add"]
)
def test_compiles_for_other_architectures(name, arch):
    assert compiled(name, arch).spilled_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("arch", OTHERS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_for_other_architectures(name, arch):
    assert compiled(name, arch).spilled_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_every_candidate_compiles(name):
    target = known_target("sm_90")
    candidates = configs(kernel(name), target)
    assert len(set(candidates)) == len(candidates) >= 4
    for config in candidates:
        assert compiled(name, 90, config).code


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "bias_gelu", "transpose", "sum_rows", "sum_columns"])
def test_memory_is_accessed_in_wide_chunks(name):
    ptx = compiled(name, 90).ptx
    accesses = re.findall(r"(?:ld|st)\.global\S*", ptx)
    wide = [a for a in accesses if ".v4." in a or ".b128" in a]
    # but for the few results of a reduction
    assert wide and len(accesses) - len(wide) <= 1


@pytest.mark.parametrize("name", ["softmax", "rms_norm"])
def test_rows_in_registers_are_read_once(name):
    ptx = compiled(name, 90).ptx
    source = emit(kernel(name), None, known_target("sm_90"))
    assert source.text.count("tl.load(in0") == 1
    assert "evict" not in ptx


def test_atomic_addition_uses_the_instruction():
    ptx = compiled("scatter_add", 90).ptx
    assert "red." in ptx or "atom." in ptx
    assert ".cas" not in ptx
    assert ".cas" in compiled("scatter_max_u8", 90).ptx


def test_division_and_root_are_exact():
    assert "div.rn.f32" in compiled("softmax", 90).ptx
    assert "div.full" not in compiled("softmax", 90).ptx
