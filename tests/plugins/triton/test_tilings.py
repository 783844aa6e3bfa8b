"""Tiles of kernels whose indices divide."""

from __future__ import annotations

import re

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

import torch

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text
from polyfuse.plugin import Config
from polyfuse_triton.build.toolchain import build
from polyfuse_triton.codegen import configs, emit
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling.choice import choose_plan
from triton_interpreted import in_interpreter, run_text

TARGET = known_target("sm_90")


def resampled(images: int, side: int) -> str:
    """Images whose rows and columns are repeated."""
    half = side // 2
    return f"""kernel k on cuda {{
  numerics fast
  axes p0{{{images}}} ~ {images}, p1{{{side}}} ~ {side}, p2{{{side}}} ~ {side}
  in in0: f32[{images * half * half}] aligned
  out out0: f32[{images * side * side}] aligned
  once {{
    v1 = load f32 in0[{half * half}*p0 + {half}*(p1 // 2) + (p2 // 2)]
    store f32 set out0[{side * side}*p0 + {side}*p1 + p2] = v1
  }}
}}"""


def kernel(images: int, side: int) -> Kernel:
    found = parse(resampled(images, side))
    assert isinstance(found, Kernel)
    return found


def test_images_are_written_in_one_chunk_and_nothing_is_wasted():
    (x,) = choose_plan(kernel(4096, 224), TARGET).dims
    assert x.extent == 224 * 224 and x.is_full


def test_rows_and_columns_apart_are_among_the_candidates():
    found = [c for c in configs(kernel(4096, 224), TARGET) if c.get("y")]
    assert found
    plan = choose_plan(kernel(4096, 224), TARGET, found[0])
    assert [dim.name for dim in plan.dims] == ["y", "x"]
    assert choose_plan(kernel(4096, 224), TARGET, configs(kernel(4096, 224), TARGET)[0]).dims[0].name == "x"


@pytest.mark.parametrize("blocks", [{"x": 16, "y": 4}, {"x": 64, "y": 1}, {"x": 128, "y": 64}])
def test_rows_and_columns_apart_give_the_same(blocks):
    operands = (torch.randn(3 * 17 * 17), torch.empty(3 * 34 * 34))
    found, wanted, text = in_interpreter(run_text, resampled(3, 34), Config.of(**blocks), operands)
    assert "YBLOCK" in text and torch.equal(found[1], wanted[1])


def normalised(kind: str, rows: int = 16384, length: int = 4096) -> Kernel:
    """Rows divided by their mean square, times a weight."""
    whole = rows * length
    wide = "" if kind == "f32" else "\n    {0} = cast f32 ({1})"
    load = "    {0} = load f32 {2}" if kind == "f32" else "    {1} = load " + kind + " {2}" + wide
    store = f"    store f32 set out0[{length}*p0 + r0] = w5"
    if kind != "f32":
        store = f"    w6 = cast {kind} (w5)\n    store {kind} set out0[{length}*p0 + r0] = w6"
    found = parse(
        "\n".join(
            [
                "kernel k on cuda {",
                "  numerics fast",
                f"  axes p0{{{rows}}} ~ {rows}",
                f"  raxes r0{{{length}}} ~ {length}",
                f"  in in0: {kind}[{whole}] aligned",
                f"  in in1: {kind}[{length}] aligned",
                f"  out out0: {kind}[{whole}] aligned",
                "  loop {",
                load.format("v1", "v0", f"in0[{length}*p0 + r0]"),
                "    v2 = mul f32 (v1, v1)",
                "    v3 = reduce f32 sum (v2)",
                "  }",
                "  loop {",
                load.format("w1", "w0", f"in0[{length}*p0 + r0]"),
                load.format("w3", "w2", "in1[r0]"),
                "    w4 = div f32 (w1, v3)",
                "    w5 = mul f32 (w4, w3)",
                store,
                "  }",
                "}",
            ]
        )
    )
    assert isinstance(found, Kernel)
    return found


@pytest.mark.parametrize(("kind", "warps"), [("bf16", 8), ("f32", 16)])
def test_a_thread_has_more_points_of_narrow_rows(kind, warps):
    plan = choose_plan(normalised(kind), TARGET)
    assert plan.persistent and plan.num_warps == warps


def test_rows_that_are_only_read_have_fewer_threads_to_wait_for():
    """Where a row is reduced again by what it was reduced to, and nothing is stored for its points."""
    written = text(normalised("f32"))
    only_read = written.replace("store f32 set out0[4096*p0 + r0] = w5", "w6 = reduce f32 sum (w5)")
    only_read = only_read.replace("out out0: f32[67108864]", "out out0: f32[16384]").rstrip()[:-1]
    found = parse(only_read + "  once {\n    store f32 set out0[p0] = w6\n  }\n}")
    assert isinstance(found, Kernel)
    assert choose_plan(found, TARGET).num_warps == 8 < choose_plan(normalised("f32"), TARGET).num_warps


@pytest.mark.parametrize(
    ("kind", "rows", "length", "side", "warps"),
    [
        ("bf16", 2048, 256, 2, 1),
        ("bf16", 2048, 768, 1, 1),
        ("bf16", 2048, 2048, 1, 4),
        ("f32", 2048, 512, 1, 1),
        ("f32", 2048, 768, 1, 4),
        ("bf16", 256, 768, 1, 4),  # few rows: more threads for each
        ("bf16", 1 << 15, 256, 8, 4),  # as many programs would take their time to start
        ("bf16", 1 << 15, 768, 2, 4),  # they come from memory
    ],
)
def test_rows_from_the_last_cache_have_few_warps(kind, rows, length, side, warps):
    plan = choose_plan(normalised(kind, rows, length), TARGET)
    assert plan.persistent and plan.num_warps == warps
    assert [dim.block for dim in plan.tiles] == [side][: side > 1]


HALVES = """kernel k on cuda {
  numerics fast
  axes p0{256} ~ 256
  raxes r0{16} ~ 16, r1{3136} ~ 3136
  in in0: bf16[12845056] aligned
  in in1: bf16[12845056] aligned
  out out0: f32[12845056] aligned
  out out1: f32[256] aligned
  loop {
    v1 = load bf16 in0[3136*p0 + 802816*r0 + r1]
    v2 = cast f32 (v1)
    v3 = load bf16 in1[3136*p0 + 802816*r0 + r1]
    v4 = cast f32 (v3)
    v5 = mul f32 (v2, v4)
    store f32 set out0[3136*p0 + 802816*r0 + r1] = v5
    v6 = reduce f32 sum (v5)
  }
  once {
    store f32 set out1[p0] = v6
  }
}"""


def test_halves_of_rows_that_are_walked_as_one_are_read_several_at_once(tmp_path):
    found = parse(HALVES)
    assert isinstance(found, Kernel)
    source = emit(found, None, TARGET)
    build([source], tmp_path, {"archs": [90], "driver": 0, "debug": True})
    code = next(tmp_path.glob("*.ptx")).read_text()
    assert "// 3136" in source.text and ".v4.b32" in code and "ld.global.b16" not in code


def test_no_thread_is_given_hundreds_of_points_to_try():
    found = parse(HALVES)
    assert isinstance(found, Kernel)
    tried = configs(found, TARGET)
    assert len(tried) > 5
    for config in tried:
        plan = choose_plan(found, TARGET, config)
        assert plan.elements <= 64 * 32 * plan.num_warps


def compiled(made: Kernel) -> tuple[str, str]:
    """The text of a kernel and its PTX."""
    from polyfuse_triton.build.meta import KernelMeta
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(made, None, TARGET)
    function = function_of(source.text.replace(source.SYMBOL, "k_test"), "k_test")
    return source.text, compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, False).ptx


def test_short_indices_that_are_divided_keep_32_bits():
    text, ptx = compiled(kernel(4096, 224))
    assert "x0 = beginning(anywhere(xb) * XBLOCK)" in text
    assert not re.search(r"\.[su]16(x2)?\s", ptx)


def test_long_indices_that_are_divided_are_known_not_to_be_negative():
    made = kernel(4096, 222)
    text, ptx = compiled(made)
    assert "x0 = beginning(xb * XBLOCK)" in text and "anywhere" not in text
    # a quotient of a number that may be negative is corrected by its sign
    assert "shr.s32" not in ptx and "shr.u32" in ptx


def test_indices_that_nothing_divides_are_left_alone():
    made = parse(
        "kernel k on cuda {\n numerics fast\n axes p0{999} ~ 999\n in in0: f32[999]\n out out0: f32[999]\n"
        " once {\n  v1 = load f32 in0[p0]\n  store f32 set out0[p0] = v1\n }\n}"
    )
    assert "beginning" not in emit(made, None, TARGET).text


def pooled(columns: str) -> Kernel:
    """The largest of five numbers around every second one, or around each."""
    loads = "\n".join(f"  v{k} = load f32 in0[{columns} + {k}]" for k in range(5))
    joins = "\n".join(f"  w{k} = maximum f32 ({f'w{k - 1}' if k > 1 else 'v0'}, v{k})" for k in range(1, 5))
    found = parse(
        "kernel k on cuda {\n numerics fast\n axes p0{65536} ~ 65536, p1{1000} ~ 1000\n"
        f" in in0: f32[134217728] aligned\n out out0: f32[65536000] aligned\n once {{\n{loads}\n{joins}\n"
        "  store f32 set out0[1000*p0 + p1] = w4\n }\n}"
    )
    assert isinstance(found, Kernel)
    return found


def test_threads_that_read_windows_of_two_buffers_have_fewer_points():
    """As the gradient of a maximum reads gradients and indices; that of a mean reads one."""

    def points(buffers: int) -> int:
        loads = "".join(
            f"  v{b}{k} = load f32 in{b}[500*p0 + ((p1 + {k}) // 2)]\n"
            for b in range(buffers)
            for k in range(4)
        )
        found = parse(
            "kernel k on cuda {\n numerics fast\n axes p0{65536} ~ 65536, p1{1000} ~ 1000\n"
            + "".join(f" in in{b}: f32[33554432] aligned\n" for b in range(buffers))
            + f" out out0: f32[65536000] aligned\n once {{\n{loads}"
            + "".join(
                f"  w{b} = add f32 (v{b}0, v{b}3)\n  x{b} = add f32 (v{b}1, v{b}2)\n" for b in range(buffers)
            )
            + "  y = add f32 (w0, x0)\n  store f32 set out0[1000*p0 + p1] = y\n }\n}"
        )
        assert isinstance(found, Kernel)
        plan = choose_plan(found, TARGET)
        return plan.elements // (32 * plan.num_warps)

    assert points(2) == 4 < points(1)


def test_threads_that_read_windows_in_steps_have_fewer_points():
    def points(columns: str) -> int:
        plan = choose_plan(pooled(columns), TARGET)
        return plan.elements // (32 * plan.num_warps)

    assert points("2000*p0 + 2*p1") == 4 < points("2000*p0 + p1")
