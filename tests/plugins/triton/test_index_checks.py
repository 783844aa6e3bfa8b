"""Indices out of range in Triton's kernels: a status where the host can look, an assertion on devices."""

from __future__ import annotations

import pytest

from index_cases import CASES
from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.plugin import Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_interpreted import in_interpreter, index_faults

SOME = ("x[i]", "embedding", "sum of x[i]", "scatter_add")

GATHER = """
kernel gather on {device} {{
  numerics fast
  axes p0{{1000}} ~ 1000
  in in0: i64[1000]
  in in1: f32[77]
  inout inout0: i64[1]
  out out0: f32[1000]
  once {{
    v1 = load i64 in0[p0]
    v2 = const i64 0
    v3 = maximum i64 (v1, v2)
    v4 = const i64 76
    v5 = minimum i64 (v3, v4)
    v6 = ne bool (v5, v1)
    store i64 check inout0[0] = v1 if v6
    v7 = load f32 in1[@0{{77}}] @(v5)
    store f32 set out0[p0] = v7
  }}
}}
"""


def gather(device: str) -> Kernel:
    return parse_kernel(GATHER.format(device=device).lstrip())


def test_interpreted():
    assert in_interpreter(index_faults, SOME) == []


@pytest.mark.slow
def test_every_case_interpreted():
    assert in_interpreter(index_faults, tuple(CASES)) == []


@pytest.mark.parametrize("arch", [80, 90])
def test_devices_stop_by_themselves(arch):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(gather("cuda"), None, known_target(f"sm_{arch}"))
    meta = KernelMeta.parse(source.meta)
    assert meta.asserts and "tl.device_assert(" in source.text
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    made = compile_kernel(function, meta, arch, 0, False)
    assert "__assertfail" in made.ptx and made.spilled_bytes == 0


def test_on_the_cpu_the_status_is_stored_to():
    source = emit(gather("cpu"), None, known_target("sm_90"))
    assert "device_assert" not in source.text and not KernelMeta.parse(source.meta).asserts
