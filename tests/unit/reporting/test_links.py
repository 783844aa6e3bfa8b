from __future__ import annotations

from collections.abc import Callable

import pytest

from house.source_tree import ROOT
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Backend
from polyfuse.reporting.links import code_links, kernel_text, statement_lines
from polyfuse_cpp.backend import CppBackend
from polyfuse_halide.backend import HalideBackend
from polyfuse_triton.backend import TritonBackend

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


def test_code_that_numbers_its_values_anew_is_linked_by_data_flow() -> None:
    kernel = parse(
        KERNEL.replace("v0, v0)", "v0, v2)").replace("    v1 =", "    v2 = const f32 3.0\n    v1 =")
    )
    assert isinstance(kernel, Kernel)
    code = "i = arange(8)\nv1 = tl.load(in0 + i)\nv2 = 1\nv3 = v1 + 3.0\ntl.store(out0 + i, v3)\n"
    found = [n for n in code_links(kernel, code) if n]
    assert found == [[1], [3], [3], [4]], "load, the constant with its addition, store"


@pytest.mark.parametrize("generator", [CppBackend, HalideBackend, TritonBackend])
def test_statements_have_lines_in_the_code_of_every_generator(
    generator: Callable[[Settings], Backend],
) -> None:
    """In nearly all cases; a value in a row buffer may have none."""
    backend = generator(Settings.resolve(None, {"triton.target": "sm_90"}))
    linked = statements = 0
    for path in sorted((ROOT / "tests" / "corpus").glob("*.ir"))[:24]:
        kernel = parse(path.read_text(encoding="utf-8"))
        assert isinstance(kernel, Kernel)
        try:
            links = code_links(kernel, backend.emit(kernel, None).rendered())
        except UnsupportedError:
            continue
        found = [links[at] for at, _ in statement_lines(kernel)]
        statements += len(found)
        linked += sum(map(bool, found))
    assert statements > 200 and linked >= 0.95 * statements, f"{linked} of {statements}"
