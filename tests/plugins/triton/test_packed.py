"""Packed 16-bit extremes are taken apart before PTX is assembled."""

from __future__ import annotations

import re

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.parse import parse
from polyfuse_triton.codegen import emit
from polyfuse_triton.packed import taken_apart
from polyfuse_triton.target import known_target
from polyfuse_triton.toolchain import build

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


def test_each_becomes_two():
    text = "\tadd.s16x2 \t%r1, %r2, %r3;\n\tmax.u16x2 \t%r71, %r70, %r51;\n\tmin.s16x2 \t%r1, %r2, %r3;\n"
    found = taken_apart(text)
    assert "add.s16x2" in found and not re.search(r"(min|max)\.[us]16x2", found)
    assert "max.u16 a0, a0, b0;" in found and "min.s16 a1, a1, b1;" in found
    assert "mov.b32 {a0, a1}, %r70;" in found and "mov.b32 %r71, {a0, a1}; }" in found


@pytest.mark.parametrize("arch", (80, 90))
def test_indices_below_65536(tmp_path, arch):
    kernel = parse(WINDOWS)
    assert isinstance(kernel, Kernel)
    source = emit(kernel, None, known_target(f"sm_{arch}"))
    build([source], tmp_path, {"archs": [arch], "driver": 0, "debug": True})
    code = next(tmp_path.glob("*.ptx")).read_text()
    assert not re.search(r"(min|max)\.[us]16x2", code)
    assert next(tmp_path.glob("*.cubin")).stat().st_size > 0
