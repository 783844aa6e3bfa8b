"""The texts of a few kernels, so that a change of the generator shows what it changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cpp_kernels import backend
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse

KERNELS = {
    "pointwise": """
        axes p0{100} ~ 100, p1{768} ~ 768
        in in0: f32[76800]
        in in1: f32[768]
        out out0: f32[76800]
        once {
          v1 = load f32 in0[768*p0 + p1]
          v2 = load f32 in1[p1]
          v3 = add f32 (v1, v2)
          v4 = tanh f32 (v3)
          store f32 set out0[768*p0 + p1] = v4
        }""",
    "reduction": """
        axes p0{300} ~ 300
        raxes r0{s0} ~ 70
        in in0: f32[300*s0]
        out out0: f32[300]
        size s0: i64 ~ 70
        loop {
          v1 = load f32 in0[s0*p0 + r0]
          v2 = mul f32 (v1, v1)
          v3 = reduce f32 sum (v2)
        }
        once {
          store f32 set out0[p0] = v3
        }""",
    "split_reduction": """
        raxes r0{1000000} ~ 1000000
        in in0: f32[1000000]
        out out0: f32[1]
        loop {
          v1 = load f32 in0[r0]
          v2, v3, v4 = reduce f32 welford (v1)
        }
        once {
          store f32 set out0[0] = v3
        }""",
    "row_norm": """
        axes p0{64} ~ 64
        raxes r0{384} ~ 384
        in in0: f32[24576]
        out out0: f32[24576]
        once {
          v1 = const f32 0.0026041666666666665
          v2 = const f32 1e-05
        }
        loop {
          v3 = load f32 in0[384*p0 + r0]
          v4 = mul f32 (v3, v3)
          v5 = reduce f32 sum (v4)
        }
        once {
          v6 = mul f32 (v5, v1)
          v7 = add f32 (v6, v2)
          v8 = rsqrt f32 (v7)
        }
        loop {
          v9 = load f32 in0[384*p0 + r0]
          v10 = mul f32 (v9, v8)
          store f32 set out0[384*p0 + r0] = v10
        }""",
    "softmax_bf16": """
        axes p0{64} ~ 64
        raxes r0{1000} ~ 1000
        in in0: bf16[64000]
        out out0: bf16[64000]
        row_buffer row0: f32[1000]
        loop {
          v1 = load bf16 in0[1000*p0 + r0]
          v2 = cast f32 (v1)
          store f32 set row0[r0] = v2
          v3, v4 = reduce f32 online_softmax (v2)
        }
        loop {
          v5 = load f32 row0[r0]
          v6 = sub f32 (v5, v3)
          v7 = exp f32 (v6)
          v8 = div f32 (v7, v4)
          v9 = cast bf16 (v8)
          store bf16 set out0[1000*p0 + r0] = v9
        }""",
    "transpose": """
        axes p0{300} ~ 300, p1{500} ~ 500
        in in0: f32[150000]
        out out0: f32[150000]
        once {
          v1 = load f32 in0[300*p1 + p0]
          v2 = neg f32 (v1)
          store f32 set out0[500*p0 + p1] = v2
        }""",
    "interleaved": """
        axes p0{1000} ~ 1000
        in in0: f32[1000]
        in in1: f32[1000]
        out out0: f32[2000]
        once {
          v1 = load f32 in0[p0]
          v2 = load f32 in1[p0]
          store f32 set out0[2*p0] = v1
          store f32 set out0[2*p0 + 1] = v2
        }""",
    "gather_checked": """
        axes p0{10000} ~ 10000
        in in0: i64[10000]
        in in1: f32[1000]
        inout inout0: i64[1]
        out out0: f32[10000]
        once {
          v1 = load i64 in0[p0]
          v2 = const i64 4611686018427387904
          v3 = bitwise_or i64 (v1, v2)
          v4 = const i64 0
          v5 = maximum i64 (v1, v4)
          v6 = const i64 999
          v7 = minimum i64 (v5, v6)
          v8 = ne bool (v7, v1)
          store i64 check inout0[0] = v3 if v8
          v9 = load f32 in1[@0{1000}] @(v7)
          store f32 set out0[p0] = v9
        }""",
    "embedding_checked": """
        axes p0{2000} ~ 2000, p1{16} ~ 16
        in in0: i64[2000]
        in in1: f32[16000]
        inout inout0: i64[1]
        out out0: f32[32000]
        once {
          v1 = load i64 in0[p0]
          v2 = const i64 4611686018427387904
          v3 = bitwise_or i64 (v1, v2)
          v4 = const i64 0
          v5 = maximum i64 (v1, v4)
          v6 = const i64 999
          v7 = minimum i64 (v5, v6)
          v8 = ne bool (v7, v1)
          store i64 check inout0[0] = v3 if v8
          v9 = load f32 in1[16*@0{1000} + p1] @(v7)
          store f32 set out0[16*p0 + p1] = v9
        }""",
    "scatter_add": """
        axes p0{4000} ~ 4000
        in in0: i64[4000]
        in in1: f32[4000]
        inout inout0: f32[64]
        once {
          v1 = load i64 in0[p0]
          v2 = load f32 in1[p0]
          store f32 add inout0[@0{64}] @(v1) = v2
        }""",
    "scan": """
        axes p0{40} ~ 40
        raxes r0{3000} ~ 3000
        in in0: f32[120000]
        out out0: f32[120000]
        loop {
          v1 = load f32 in0[3000*p0 + r0]
          v2 = scan f32 sum (v1)
          store f32 set out0[3000*p0 + r0] = v2
        }""",
    "matmul_silu": """
        axes p0{64} ~ 64, p1{256} ~ 256
        raxes r0{128} ~ 128
        in in0: f32[8192]
        in in1: f32[32768]
        in in2: f32[256]
        out out0: f32[16384]
        loop {
          v1 = load f32 in0[128*p0 + r0]
          v2 = load f32 in1[256*r0 + p1]
          v3 = reduce f32 dot (v1, v2)
        }
        once {
          v4 = load f32 in2[p1]
          v5 = add f32 (v3, v4)
          v6 = sigmoid f32 (v5)
          v7 = mul f32 (v5, v6)
          store f32 set out0[256*p0 + p1] = v7
        }""",
}


@pytest.mark.parametrize("name", KERNELS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    body = KERNELS[name]
    symbols = "symbols s0{2..4096}\n" if "size s0" in body else ""
    kernel = parse(f"kernel k on cpu {{\n{symbols}numerics fast\n{body}\n}}")
    assert isinstance(kernel, Kernel)
    source = backend("avx2").emit(kernel)
    golden(f"cpp/{name}.txt", f"{source.text}\n{source.meta}")
