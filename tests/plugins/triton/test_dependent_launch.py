"""Kernels that start early begin by waiting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse_cuda.driver import has_dependent_launch
from polyfuse_triton.build.artifact import read_unit
from polyfuse_triton.build.toolchain import build
from polyfuse_triton.launch.dependent_launch import is_waiting, waiting
from triton_sources import source

PTX = """.version 8.7
.target sm_90a
.func (.param .b32 r) helper() {
\tret;
}
\t// .globl k
.visible .entry k(
\t.param .u64 .ptr .global .align 16 k_param_0,
\t.param .u64 k_param_1
)
.reqntid 128
{
\t.reg .b32 \t%r<9>;

$L__func_begin0:
\t.loc\t1 3 0
// %bb.0:
\tld.param.b64 \t%rd1, [k_param_0];
\tret;
}
"""


def test_the_wait_comes_before_the_first_instruction_of_the_kernel() -> None:
    made = waiting(PTX)
    assert is_waiting(made) and not is_waiting(PTX)
    assert made.replace("\tgriddepcontrol.wait;\n", "") == PTX
    assert "// %bb.0:\n\tgriddepcontrol.wait;\n\tld.param.b64" in made


def test_what_has_no_kernel_stays() -> None:
    assert waiting(PTX.replace(".visible .entry", ".visible .func")).count("griddepcontrol") == 0


@pytest.mark.parametrize(
    ("arch", "cooperative", "early"), [(90, False, True), (90, True, False), (80, False, False)]
)
def test_built_kernels_say_whether_they_wait(
    tmp_path: Path, arch: int, cooperative: bool, early: bool
) -> None:
    options = {"archs": [arch], "driver": 13, "debug": True}
    one = source(cooperative=cooperative)
    build([one], tmp_path, options)
    (variant,) = read_unit(tmp_path)[one.key].variants
    assert variant.starts_early is early
    ptx = (tmp_path / f"{one.key}.sm_{arch}.ptx").read_text()
    assert ("griddepcontrol.wait" in ptx) is early
    if early:
        entry = ptx[ptx.index(".visible .entry") :]
        first = re.search(r"^\t([a-z][^\n]*);", entry[entry.index("{") :], re.MULTILINE)
        assert first is not None and first[1] == "griddepcontrol.wait"


def test_without_a_driver_nothing_starts_early(tmp_path: Path) -> None:
    assert not has_dependent_launch(str(tmp_path / "no_such_library.so"))
