"""Kinds of kernels beside rows and products: 8-bit floats, more elements than 32 bits count, odd addresses,
lists, and several rows in a tile. Each is interpreted, and compiled for each architecture.
"""

from __future__ import annotations

import re

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.expr import cast, load
from polyfuse.ir.nodes import Pointwise
from polyfuse.ir.text.parse import parse
from polyfuse.ir.types import DType
from polyfuse.plugin import Source
from polyfuse.symbolic import axis
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import claims, emit
from polyfuse_triton.target import known_target
from triton_interpreted import in_interpreter, list_faults, run_text

ARCHS = (80, 90, 100)


def kernel_text(arguments: str, body: str, axes: str, raxes: str = "") -> str:
    loops = f"axes {axes}\n" + (f"raxes {raxes}\n" if raxes else "")
    return f"kernel k on cuda {{\nnumerics fast\n{loops}{arguments}\n{body}\n}}"


def compiled(text: str, meta: str, arch: int):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    function = function_of(text.replace(Source.SYMBOL, "k_test"), "k_test")
    return compile_kernel(function, KernelMeta.parse(meta), arch, 0, False)


def made_of(text: str, arch: int):
    source = emit(parse(text), None, known_target(f"sm_{arch}"))
    return source, compiled(source.text, source.meta, arch)


EIGHT = kernel_text(
    "in in0: f32[1000] aligned\nin in1: f8e5m2[1000] aligned\nin in2: f8e4m3[1000] aligned\n"
    "out out0: f8e4m3[1000] aligned\nout out1: f8e5m2[1000] aligned\nout out2: f32[1000] aligned",
    """once {
  v1 = load f32 in0[p0]
  v2 = cast f8e4m3 (v1)
  store f8e4m3 set out0[p0] = v2
  v3 = cast f8e5m2 (v1)
  store f8e5m2 set out1[p0] = v3
  v4 = load f8e5m2 in1[p0]
  v5 = cast f32 (v4)
  v6 = load f8e4m3 in2[p0]
  v7 = cast f32 (v6)
  v8 = add f32 (v5, v7)
  store f32 set out2[p0] = v8
}""",
    "p0{1000} ~ 1000",
)


def test_floats_of_eight_bits_interpreted():
    numbers = torch.randn(1000) * 100
    numbers[:5] = torch.tensor([0.0, -0.0, float("nan"), 1e-3, -447.0])
    every = torch.arange(1000) % 256
    operands = [
        numbers,
        every.to(torch.uint8).view(torch.float8_e5m2),
        every.flip(0).to(torch.uint8).view(torch.float8_e4m3fn),
        torch.zeros(1000).to(torch.float8_e4m3fn),
        torch.zeros(1000).to(torch.float8_e5m2),
        torch.zeros(1000),
    ]
    found, wanted, _ = in_interpreter(run_text, EIGHT, None, operands)
    for got, true in zip(found[3:], wanted[3:], strict=True):
        torch.testing.assert_close(got.float(), true.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("arch", ARCHS[1:])
def test_floats_of_eight_bits_compile(arch):
    _, made = made_of(EIGHT, arch)
    assert made.spilled_bytes == 0 and "cvt.rn.satfinite.e4m3x2.f32" in made.ptx


def test_floats_of_eight_bits_are_refused_where_no_instruction_converts_them():
    row = axis("p0", 64)
    for dtype in (DType.f8e4m3, DType.f8e5m2):
        node = Pointwise("n", (row,), (), "out", row, cast(load("given", row, DType.f32), dtype))
        assert claims(node, known_target("sm_90"))
        refusal = claims(node, known_target("sm_80"))
        assert not refusal and "sm_80" in refusal.reason


FAR = kernel_text(
    "in in0: f32[3000000000] aligned\nout out0: f32[3000000000] aligned",
    "once {\n  v1 = load f32 in0[p0]\n  v2 = add f32 (v1, v1)\n  store f32 set out0[p0] = v2\n}",
    "p0{3000000000} ~ 3000000000",
)
FAR_ROWS = kernel_text(
    "in in0: bf16[4000000000] aligned\nout out0: f32[40000] aligned",
    "loop {\n  v1 = load bf16 in0[100000*p0 + r0]\n  v2 = cast f32 (v1)\n  v3 = reduce f32 sum (v2)\n}\n"
    "once {\n  store f32 set out0[p0] = v3\n}",
    "p0{40000} ~ 40000",
    "r0{100000} ~ 100000",
)


@pytest.mark.each_value
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", [FAR, FAR_ROWS], ids=["elements", "rows"])
def test_more_elements_than_32_bits_count(text, arch):
    source, made = made_of(text, arch)
    assert "tl.int64" in source.text and made.spilled_bytes == 0
    near, _ = made_of(text.replace("000000000]", "000]").replace("{3000000000}", "{3000}"), arch)
    assert ("tl.int64" in near.text) == (text is FAR_ROWS)


@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", ARCHS)
def test_aligned_arguments_are_accessed_in_wide_chunks_and_others_are_not(arch):
    wide = re.compile(r"(?:ld|st)\.global\S*\.(?:v4\.b32|v2\.b64|b128)")
    text = FAR.replace("3000000000", "1048576")
    assert wide.search(made_of(text, arch)[1].ptx)
    assert not wide.search(made_of(text.replace(" aligned", ""), arch)[1].ptx)


@pytest.mark.quick(1)
@pytest.mark.parametrize("count", [3, 17])
def test_a_list_of_equal_sizes_is_one_kernel(count):
    faults, made = in_interpreter(list_faults, count)
    assert faults == [] and made
    for arch in ARCHS:
        assert compiled(*made[-1], arch).spilled_bytes == 0


SHORT = kernel_text(
    "in in0: f32[100000*24] aligned\nout out0: f32[100000] aligned",
    "loop {\n  v1 = load f32 in0[24*p0 + r0]\n  v2 = reduce f32 sum (v1)\n}\n"
    "once {\n  store f32 set out0[p0] = v2\n}",
    "p0{100000} ~ 100000",
    "r0{24} ~ 24",
)


@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", ARCHS)
def test_several_rows_in_a_tile(arch):
    source, made = made_of(SHORT, arch)
    constants = dict(KernelMeta.parse(source.meta).constexprs)
    assert constants["XBLOCK"] > 1 and constants["RBLOCK"] == 32 and made.spilled_bytes == 0


def test_several_rows_in_a_tile_interpreted():
    given = torch.randn(999 * 24)
    text = SHORT.replace("100000", "999")
    found, wanted, _ = in_interpreter(run_text, text, None, [given, torch.zeros(999)])
    torch.testing.assert_close(found[1], wanted[1])
