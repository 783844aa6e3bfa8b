"""Programs for classes of dynamic sizes: tiles fit the largest size of a class, and multiples are seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse_triton.build.toolchain import build
from polyfuse_triton.codegen import configs, emit
from polyfuse_triton.matmul.strides import sizes_in_strides
from polyfuse_triton.target import known_target
from polyfuse_triton.target_info import target_info_of
from polyfuse_triton.tiling.choice import choose_plan
from triton_gemms import Case, kernel_of
from triton_interpreted import in_interpreter, size_faults

TARGET = known_target("sm_90")


def softmax(declared: str, length: str, hint: int) -> Kernel:
    """Softmax over rows of a length that is an expression of the symbol `s0`."""
    row = length.replace("8*", "8*p0*") if "*" in length else f"p0*{length}"
    size = length.replace("8*", "32768*") if "*" in length else f"4096*{length}"
    found = parse(f"""kernel k on cuda {{
  symbols {declared}
  numerics fast
  axes p0{{4096}} ~ 4096
  raxes r0{{{length}}} ~ {hint}
  in in0: f32[{size}] aligned
  out out0: f32[{size}] aligned
  size s0: i64 ~ {hint}
  row_buffer row0: f32[{length}]
  loop {{
    v1 = load f32 in0[{row} + r0]
    v2 = reduce f32 max (v1)
  }}
  loop {{
    v3 = load f32 in0[{row} + r0]
    v4 = sub f32 (v3, v2)
    v5 = exp f32 (v4)
    store f32 set row0[r0] = v5
    v6 = reduce f32 sum (v5)
  }}
  loop {{
    v7 = load f32 row0[r0]
    v8 = div f32 (v7, v6)
    store f32 set out0[{row} + r0] = v8
  }}
}}""")
    assert isinstance(found, Kernel)
    return found


@pytest.mark.parametrize(("least", "most"), ((17, 32), (513, 1024), (1025, 2048)))
def test_rows_of_a_class_are_held_in_registers(least: int, most: int) -> None:
    plan = choose_plan(softmax(f"s0{{{least}..{most}}}", "s0", least), TARGET)
    assert plan.persistent and plan.reduced is not None and plan.reduced.block == most


def test_rows_of_any_length_are_walked() -> None:
    plan = choose_plan(softmax("s0{2..}", "s0", 700), TARGET)
    assert not plan.persistent and plan.walks


def test_classes_end_where_tiles_do() -> None:
    info = target_info_of(TARGET)
    assert info.size_multiple == 8
    assert all((first - 1).bit_count() == 1 for first in info.size_classes)


def test_rows_that_are_multiples_are_read_in_wide_loads(tmp_path: Path) -> None:
    found: list[int] = []
    for declared, length, hint in (("s0{65..128}", "8*s0", 91), ("s0{513..1024}", "s0", 700)):
        source = emit(softmax(declared, length, hint), None, TARGET)
        folder = tmp_path / str(hint)
        folder.mkdir()
        build([source], folder, {"archs": [90], "driver": 0, "debug": True})
        (assembly,) = (path.read_text() for path in folder.glob("*.ptx"))
        found.append(len(re.findall(r"ld\.global[.\w:]*\.v4", assembly)))
    assert found[0] > 0 == found[1]


@pytest.mark.parametrize(("size", "multiple"), (("s0", 16), ("8*s0", 2), ("16*s0", 1), ("48*s0", 1)))
def test_matmuls_ask_of_a_size_what_its_factor_leaves_open(size: str, multiple: int) -> None:
    text = Case(64, 64, "s0~128", left_by_rows=True, right_by_rows=False).text()
    kernel = kernel_of(text.replace("s0*p", f"{size}*p"))
    assert {name: use.multiple for name, use in sizes_in_strides(kernel).items()} == {"s0": multiple}
    config = configs(kernel, TARGET)[0]
    written = emit(kernel, config, TARGET).text
    assert (f"s0 % {multiple} == 0" in written) == (multiple > 1)
    assert (f"s0, tl.int32) // {multiple} * {multiple}" in written) == (multiple > 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ("softmax", "column sums", "transposed"))
def test_one_graph_at_many_sizes(name: str) -> None:
    assert in_interpreter(size_faults, name) == []
