"""Kernels for a GPU, compiled without one: how they are divided, what the code does, what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Config
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.codegen.device_plan import DevicePlan, choose_device_plan
from polyfuse_halide.toolchain import check_memory

POINTS = """kernel points on cuda {{
  numerics fast
  axes i0{{{rows}}} ~ {rows}, i1{{{columns}}} ~ {columns}
  in in0: {dtype}[{numel}] {aligned}
  in in1: {dtype}[{numel}] {aligned}
  out out0: {dtype}[{numel}] {aligned}
  once {{
    v0 = load {dtype} in0[{first}]
    v1 = load {dtype} in1[{columns}*i0 + i1]
    v2 = cast f32 (v0)
    v3 = cast f32 (v1)
    v4 = mul f32 (v2, v3)
    v5 = cast {dtype} (v4)
    store {dtype} set out0[{columns}*i0 + i1] = v5
  }}
}}
"""
SOFTMAX = """kernel softmax on cuda {
  numerics fast
  axes i0{16384} ~ 16384
  raxes r0{4096} ~ 4096
  in in0: f32[67108864]
  out out0: f32[67108864]
  row_buffer row: f32[4096]
  loop {
    v0 = load f32 in0[4096*i0 + r0]
    store f32 set row[r0] = v0
    m, s = reduce f32 online_softmax (v0)
  }
  loop {
    v1 = load f32 row[r0]
    v2 = sub f32 (v1, m)
    v3 = exp f32 (v2)
    v4 = div f32 (v3, s)
    store f32 set out0[4096*i0 + r0] = v4
  }
}
"""
SUMS = """kernel sums on cuda {
  symbols s0{0..}
  numerics fast
  axes i0{%(axis)s} ~ %(points)s
  raxes r0{%(loop)s} ~ %(steps)s
  in in0: f32[%(numel)s]
  out out0: f32[%(axis)s]
  size s0: i64
  loop {
    v0 = load f32 in0[%(index)s]
    v1 = reduce f32 sum (v0)
  }
  once {
    store f32 set out0[i0] = v1
  }
}
"""
ADDED = """kernel added on cuda {{
  numerics fast
  axes i0{{10000}} ~ 10000
  in in0: i64[10000]
  in in1: {dtype}[10000]
  inout out0: {dtype}[50]
  once {{
    v0 = load i64 in0[i0]
    v1 = load {dtype} in1[i0]
    store {dtype} {mode} out0[@0{{50}}] @(v0) = v1
  }}
}}
"""


def points(
    rows: int, columns: int, dtype: str = "f32", aligned: bool = True, transposed: bool = False
) -> Kernel:
    first = f"{rows}*i1 + i0" if transposed else f"{columns}*i0 + i1"
    text = POINTS.format(
        rows=rows,
        columns=columns,
        numel=rows * columns,
        dtype=dtype,
        first=first,
        aligned="aligned" if aligned else "",
    )
    return parse(text)


def backend(**options: str) -> HalideBackend:
    return HalideBackend(Settings.resolve(options={"halide.gpu": "80", "halide.keep": "1", **options}))


def code(kernel: Kernel, folder: Path) -> str:
    """The device's code of a kernel, which its stored loops hold."""
    made = backend()
    source = made.emit(kernel)
    made.build([source], folder)
    text = (folder / f"{source.key}.stmt").read_bytes().decode("utf-8", "replace")
    return text[text.index(".version") : text.rindex("ret;")]


def plan(kernel: Kernel, **choices: int) -> DevicePlan:
    return choose_device_plan(kernel, 132, Config.of(**choices) if choices else None)


def loops(text: str) -> list[str]:
    """The bodies of loops: from a label to the jump back to it."""
    body = r"(\$L__BB\d+_\d+):(?:(?!\$L__BB\d+_\d+:).)*?bra\s+\1;"
    return [match.group(0) for match in re.finditer(body, text, re.DOTALL)]


def test_large_aligned_tensors_are_moved_in_vectors(tmp_path):
    kernel = points(4096, 4096)
    assert plan(kernel) == DevicePlan(each=4, vector=True, flat=False)
    text = code(kernel, tmp_path)
    assert text.count("ld.global.nc.v4.b32") == 2 and text.count("st.global.v4.b32") == 1
    assert plan(points(4096, 4096, "bf16")).each == 8


@pytest.mark.quick(1)
@pytest.mark.parametrize("kernel", [points(4096, 4096, aligned=False), points(4096, 4095)])
def test_without_alignment_there_are_no_vectors(kernel, tmp_path):
    chosen = plan(kernel)
    assert chosen.each == 4 and not chosen.vector
    assert ".v4" not in code(kernel, tmp_path)


def test_a_transposed_tensor_goes_through_a_tile(tmp_path):
    kernel = points(2048, 1024, transposed=True)
    assert plan(kernel).transpose == 0
    text = code(kernel, tmp_path)
    # four of a thread are fetched as they lie, and read transposed after the block has waited once
    before, after = text.split("bar.sync")
    assert before.count("st.shared") == 4 and after.count("ld.shared") == 4


def test_a_softmax_row_is_read_once_and_summed_in_registers(tmp_path):
    text = code(parse(SOFTMAX), tmp_path)
    assert text.count("ld.global") <= 4
    found = loops(text)
    assert len(found) == 4
    assert not any("bar.sync" in body for body in found)
    # the sums are stored where nobody else looks: only the row is stored to shared memory in a loop
    assert sum("st.shared" in body for body in found) == 1


def sums(axis: str, loop: str, index: str, points: int, steps: int) -> Kernel:
    numel = f"{points * steps}" if axis.isdigit() and loop.isdigit() else "1000*s0"
    return parse(
        SUMS % {"axis": axis, "loop": loop, "index": index, "points": points, "steps": steps, "numel": numel}
    )


def test_rows_columns_and_short_rows_are_divided_differently():
    rows = plan(sums("4096", "4096", "4096*i0 + r0", 4096, 4096))
    assert (rows.lanes, rows.points, rows.across) == (256, 1, False)
    columns = plan(sums("4096", "4096", "i0 + 4096*r0", 4096, 4096))
    assert columns.across and columns.points == 32 and columns.lanes == 32
    short = plan(sums("400000", "8", "8*i0 + r0", 400000, 8))
    assert short.lanes == 1
    assert plan(sums("16", "100000", "100000*i0 + r0", 16, 100000)).lanes == 1024
    assert plan(sums("4096", "4096", "4096*i0 + r0", 4096, 4096), lanes=64).lanes == 64


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "kernel",
    [
        sums("s0", "1000", "1000*i0 + r0", 512, 1000),
        sums("1000", "s0", "i0 + 1000*r0", 1000, 512),
        sums("s0", "1000", "i0 + s0*r0", 512, 1000),
    ],
)
def test_any_size_is_compiled(kernel, tmp_path):
    assert ".entry" in code(kernel, tmp_path)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("dtype", "mode", "instruction"),
    [
        ("f32", "add", "add.f32"),
        ("i32", "add", "add.u32"),
        ("i64", "add", "add.u64"),
        ("f64", "add", "add.f64"),
    ],
)
def test_what_collides_is_combined_by_the_device(dtype, mode, instruction, tmp_path):
    text = code(parse(ADDED.format(dtype=dtype, mode=mode)), tmp_path)
    assert ".cas." not in text
    assert re.search(rf"(atom|red)\.\S*{re.escape(instruction)}", text)


@pytest.mark.parametrize(("dtype", "mode"), [("bf16", "add"), ("i8", "add"), ("f32", "max"), ("i32", "min")])
def test_what_the_device_cannot_combine_is_refused(dtype, mode):
    with pytest.raises(UnsupportedError, match=f"no atomic {mode} on {dtype}"):
        backend().emit(parse(ADDED.format(dtype=dtype, mode=mode)))


SCANNED = """kernel scanned on cuda {{
  numerics {numerics}
  axes i0{{7}} ~ 7
  raxes r0{{300}} ~ 300
  in in0: f32[2100]
  out out0: f32[2100]
  out out1: i64[2100]
  loop {{
    v0 = load f32 in0[300*i0 + r0]
    v1, v2 = scan f32 {kind} (v0)
    store f32 set out0[300*i0 + r0] = v1
    store i64 set out1[300*i0 + r0] = v2
  }}
}}
"""


@pytest.mark.parametrize("kind", ["min", "max"])
def test_scans_that_keep_positions_are_refused(kind):
    with pytest.raises(UnsupportedError, match="lose positions"):
        backend().emit(parse(SCANNED.format(kind=kind, numerics="fast")))


def test_the_roundings_of_eager_mode_are_refused():
    with pytest.raises(UnsupportedError, match="rounds otherwise"):
        backend().emit(replace(parse(SOFTMAX), numerics="eager"))


def test_programs_are_deterministic_and_differ_from_the_processors():
    kernel = parse(SOFTMAX)
    first, second = backend().emit(kernel), backend().emit(kernel)
    assert first == second
    assert backend().emit(replace(kernel, device="cpu")).key != first.key


def test_without_a_gpu_kernels_for_one_are_refused(monkeypatch):
    monkeypatch.setattr("polyfuse_halide.backend._present", lambda: None)
    made = HalideBackend(Settings.resolve())
    with pytest.raises(UnsupportedError, match="no GPU"):
        made.emit(parse(SOFTMAX))


def test_an_unknown_gpu_is_refused_with_the_known_ones():
    with pytest.raises(BackendUnavailableError, match="90"):
        backend(**{"halide.gpu": "sm_90"})


def test_what_needs_memory_of_its_own_on_the_device_is_no_kernel(tmp_path):
    (tmp_path / "plain.o").write_bytes(b"halide_cuda_run\0")
    (tmp_path / "hungry.o").write_bytes(b"halide_cuda_run\0halide_device_malloc\0")
    check_memory(tmp_path / "plain.o")
    with pytest.raises(ValueError, match="memory of its own"):
        check_memory(tmp_path / "hungry.o")


ROUNDED = """kernel rounded on cuda {{
  numerics fast
  axes i0{{1000}} ~ 1000
  in in0: f32[1000]
  out out0: f32[1000]
  once {{
    v0 = load f32 in0[i0]
    v1 = {op} f32 (v0)
    store f32 set out0[i0] = v1
  }}
}}
"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("op", ["floor", "ceil"])
def test_least_numbers_are_rounded_by_their_bits(op, tmp_path):
    """The device takes them for zero, of which the next integer is another."""
    text = code(parse(ROUNDED.format(op=op)), tmp_path)
    assert re.search(rf"setp\.lt\.u32\s+%p\d+, %r\d+, {(1 << 23) - 1};", text)


def test_an_empty_kernel_has_no_launch(tmp_path):
    made = backend()
    source = made.emit(points(0, 64))
    made.build([source], tmp_path)
    assert (tmp_path / f"{source.key}.o").exists()
