"""Packed 16-bit sums are taken apart before PTX is assembled."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse_triton.build.toolchain import build
from polyfuse_triton.codegen import emit
from polyfuse_triton.device.packed_int16 import taken_apart
from polyfuse_triton.target import known_target

WINDOWS = """kernel k on cuda {
  numerics fast
  axes p0{32} ~ 32, p1{112} ~ 112, p2{112} ~ 112
  in in0: f32[46208] aligned
  out out0: f32[401408] aligned
  once {
    v1 = load f32 in0[1444*p0 + 38*((p1 + 2) // 3) + ((p2 + 2) // 3)]
    v2 = index i64 <-max(0, 3*((p1 + 2) // 3) - 2) + min(112, 3*((p1 + 2) // 3) + 3)>
    v3 = cast f32 (v2)
    v4 = index i64 <-max(0, 3*((p2 + 2) // 3) - 2) + min(112, 3*((p2 + 2) // 3) + 3)>
    v5 = cast f32 (v4)
    v6 = mul f32 (v3, v5)
    v7 = div f32 (v1, v6)
    store f32 set out0[12544*p0 + 112*p1 + p2] = v7
  }
}"""


# The sum of a pair with a constant of which one half is used.
HALF = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .b16 %rs<3>;
  .reg .b32 %r<6>;
  .reg .b64 %rd<2>;
  ld.param.b64 %rd1, [p];
  ld.global.b32 %r1, [%rd1];
  mov.b32 %r2, 2;
  add.s16x2 %r3, %r1, %r2;
  mov.b32 {%rs1, _}, %r3;
  or.b32 %r4, %r1, 131072;
  mov.b32 {_, %rs2}, %r4;
  mov.b32 %r5, {%rs1, %rs2};
  st.global.b32 [%rd1], %r5;
  ret;
}
"""


def test_each_becomes_two():
    text = "\tmax.u16x2 \t%r1, %r2, %r3;\n\tadd.s16x2 \t%r71, %r70, %r51;\n\tadd.u16x2 \t%r1, %r2, 131072;\n"
    found = taken_apart(text)
    assert "max.u16x2" in found and not re.search(r"add\.[us]16x2", found)
    assert "add.s16 a0, a0, b0;" in found and "add.u16 a1, a1, b1;" in found
    assert "mov.b32 {a0, a1}, %r70;" in found and "mov.b32 %r71, {a0, a1}; }" in found
    assert "mov.b32 c, 131072;" in found


def test_the_half_that_is_used_stays(tmp_path):
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not (tools / "nvdisasm").exists():
        pytest.skip("this Triton brings no disassembler, and the test reads machine code")
    text, code = tmp_path / "k.ptx", tmp_path / "k.cubin"
    text.write_text(taken_apart(HALF))
    subprocess.run([tools / "ptxas", "-arch=sm_90a", "-O3", text, "-o", code], check=True)
    read = subprocess.run([tools / "nvdisasm", code], check=True, capture_output=True, text=True).stdout
    assert re.search(r"VIADD R\d+, R\d+(\.reuse)?, 0x2 ", read), read


@pytest.mark.parametrize("arch", (80, 90))
def test_indices_below_65536(tmp_path, arch):
    kernel = parse(WINDOWS)
    assert isinstance(kernel, Kernel)
    source = emit(kernel, None, known_target(f"sm_{arch}"))
    build([source], tmp_path, {"archs": [arch], "driver": 0, "debug": True})
    code = next(tmp_path.glob("*.ptx")).read_text()
    assert not re.search(r"add\.[us]16x2", code)
    assert next(tmp_path.glob("*.cubin")).stat().st_size > 0
