from __future__ import annotations

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.reporting.links import code_links, kernel_text

KERNEL = """
kernel double on cpu {
  numerics fast
  axes i0{8} ~ 8
  in in0: f32[8]
  out out0: f32[8]
  once {
    v0 = load f32 in0[i0]
    v1 = add f32 (v0, v0)
    store f32 set out0[i0] = v1
  }
}
"""
CODE = """\
void k(const f32* in0, f32* out0) {
  auto v0 = load(in0 + i0);
  auto v0_1 = load(in0 + i0 + 8);
  auto v1 = add(v0, v0);
  auto v1_1 = add(v0_1, v0_1);
  store(out0 + i0, v1);
  store(out0 + i0 + 8, v1_1);
}
"""


def test_lines_of_ir_are_linked_to_the_code_that_computes_them() -> None:
    kernel = parse(KERNEL)
    assert isinstance(kernel, Kernel)
    links = dict(zip(kernel_text(kernel).splitlines(), code_links(kernel, CODE), strict=True))
    found = {line.strip(): numbers for line, numbers in links.items() if numbers}
    assert found == {
        "v0 = load f32 in0[i0]": [1, 2],
        "v1 = add f32 (v0, v0)": [3, 4],
        "store f32 set out0[i0] = v1": [5, 6],
    }
