"""Matmuls in every shape, layout and type beside the reference interpreter, and their tiles."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Config
from polyfuse_triton.codegen import configs, emit, neighbours
from polyfuse_triton.matmul.plan import MatmulPlan, matmul_of
from polyfuse_triton.matmul.tiling import is_possible
from polyfuse_triton.target import known_target
from triton_gemms import COMPILED, Case, compiled_faults, convolution, kernel_of, matmul_faults
from triton_interpreted import in_interpreter, narrow_weight_faults, run_text

SMALL = Config.of(m=16, n=32, k=32, group=2, warps=4, stages=2)
SHAPES = (
    (37, 50, 41),
    (64, 64, 64),
    (1, 50, 41),
    (37, 1, 41),
    (1, 1, 41),
    (37, 50, 1),
    (2, 3, 5),
    (96, 32, 128),
)
TYPES = (
    *(Case(37, 50, 41, 3, dtype=dtype) for dtype in ("bf16", "f16", "f32", "f64")),
    Case(37, 50, 70, dtype="f32", kind="dot_tf32"),
    Case(37, 50, 70, dtype="i8", out="i32"),
    Case(37, 50, 70, dtype="i8", out="bf16", epilogue="scaled"),
    Case(37, 50, 70, dtype="f8e4m3", out="bf16", epilogue="scaled"),
    Case(37, 50, 70, dtype="f8e5m2", right="f8e4m3", out="f32"),
    Case(37, 50, 70, dtype="bf16", out="f32"),
)


def run(case: Case | str, config: Config | None = SMALL) -> str:
    seed = random.randrange(1 << 30)
    faults, text = in_interpreter(matmul_faults, case, config, seed)
    assert faults == [], f"seed {seed}\n{text}"
    return text


@pytest.mark.quick(4)
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_shapes(m, n, k):
    assert "tl.dot" in run(Case(m, n, k))


@pytest.mark.quick(4)
@pytest.mark.parametrize("case", TYPES, ids=lambda c: f"{c.dtype}-{c.right}-{c.out}-{c.kind}")
def test_types(case):
    assert "tl.dot" in run(case)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["u8", "i16", "i64"])
def test_types_without_an_instruction_are_multiplied_and_added(dtype):
    out = {"u8": "i32"}.get(dtype, dtype)
    assert "tl.dot" not in run(Case(37, 50, 41, dtype=dtype, out=out), None)


@pytest.mark.quick(1)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_layouts(left, right):
    run(Case(37, 50, 41, 3, left_by_rows=left, right_by_rows=right))


@pytest.mark.each_value
@pytest.mark.parametrize("epilogue", ["bias_gelu", "scaled", "residual", "dropout"])
@pytest.mark.parametrize("m", [37, 1])
def test_epilogues(epilogue, m):
    run(Case(m, 50, 41, dtype="f32", epilogue=epilogue))


@pytest.mark.each_value
@pytest.mark.parametrize("prologue", ["relu", "log", "dequantise"])
@pytest.mark.parametrize("k", [41, 64])
def test_prologues(prologue, k):
    run(Case(37, 50, k, prologue=prologue))


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "case",
    [
        Case("s0~37", "s1~50", "s2~41"),
        Case("s0~37", "s1~48", "s2~64"),
        Case("s0~37", "s1~48", "s2~40", "s3~2", right_by_rows=False),
        Case("s0~1", 64, 64),
        Case("s0~37", 64, "s2~41", "s3~3"),
        Case(64, 64, "s2~64", epilogue="bias_gelu"),
    ],
)
def test_dynamic_sizes(case):
    run(case)


@pytest.mark.parametrize("m, n", [(1, 50), (37, 1), (1, 1)])
def test_one_row_or_column_is_an_ordinary_loop(m, n):
    assert "tl.dot" not in run(Case(m, n, 41), None)


@pytest.mark.each_value
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("sizes", [(2, 5, 7, 6), (1, 16, 32, 8), (3, 1, 1, 5)])
@pytest.mark.parametrize("window", [1, 3])
def test_convolutions(last, sizes, window):
    run(convolution(*sizes, window=window, last=last))


def test_default_tiles():
    for case in (Case(100, 70, 200), Case(16, 256, 128, right_by_rows=False), convolution(2, 5, 7, 6)):
        assert "tl.dot" in run(case, None)


def test_any_tiles_give_the_same():
    for _ in range(4):
        case = Case(random.randint(1, 70), random.randint(1, 70), random.randint(1, 90), dtype="f16")
        sides = (16, 32, 64)
        values = {name: random.choice(sides) for name in ("m", "n", "k")}
        run(case, Config.of(**values, group=random.choice((1, 3, 8)), warps=4, stages=3))


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("case", [Case(4096, 4096, 4096), Case(16, 4096, 4096), Case(256, 512, 64, 96)])
def test_candidates_are_possible_and_few(case, arch):
    target, kernel = known_target(f"sm_{arch}"), kernel_of(case)
    product = matmul_of(kernel)
    assert product is not None
    offered = configs(kernel, target)
    assert 4 <= len(offered) == len(set(offered)) <= 16
    assert emit(kernel, None, target).text == emit(kernel, offered[0], target).text
    for config in (*offered, *neighbours(kernel, offered[0], target)):
        assert is_possible(product, target, MatmulPlan.of(config))


def test_masks_are_left_out_where_sizes_divide():
    target, config = known_target("sm_90"), Config.of(m=64, n=64, k=64, group=8, warps=4, stages=3)
    assert "mask" not in emit(kernel_of(Case(256, 256, 256)), config, target).text
    partly = emit(kernel_of(Case(256, 250, 256)), config, target).text
    loads = [line for line in partly.splitlines() if "tl.load(" in line]
    assert ["mask" in line for line in loads] == [False, True]


def test_few_rows_are_not_padded_far():
    target = known_target("sm_90")
    for config in configs(kernel_of(Case(16, 4096, 4096)), target):
        assert config.get("m") <= 16


def test_large_matrices_are_addressed_with_64_bits():
    target = known_target("sm_90")
    text = emit(kernel_of(Case(1 << 17, 1 << 16, 64)), None, target).text
    assert "tl.int64" in text
    assert "tl.int64" not in emit(kernel_of(Case(1024, 1024, 64)), None, target).text


def test_equal_matmuls_have_equal_text():
    case = Case(100, 70, 200, epilogue="bias_gelu")
    target = known_target("sm_90")
    assert emit(kernel_of(case), None, target) == emit(kernel_of(replace(case)), None, target)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_functions(name, dynamic):
    assert in_interpreter(compiled_faults, name, dynamic) == []


def test_a_matmul_of_sizes_divides_as_one_number():
    case = """
kernel k on cuda {
  symbols s0{2..}, s1{2..}
  numerics fast
  axes p0{s0*s1*6} ~ 72
  in in0: f32[6] aligned
  out out0: f32[s0*s1*6] aligned
  size s0: i64 ~ 3
  size s1: i64 ~ 4
  once {
    v = load f32 in0[(p0 // (s0*s1))]
    store f32 set out0[p0] = v
  }
}
"""
    operands = [torch.arange(6.0), torch.zeros(72), 3, 4]
    found, wanted, text = in_interpreter(run_text, case, None, operands)
    assert torch.equal(found[1], wanted[1]), text


def test_rows_chosen_by_data():
    case = """
kernel k on cuda {
  numerics fast
  axes p1{37} ~ 37, p2{50} ~ 50
  raxes r0{41} ~ 41
  in in0: f32[820] aligned
  in in1: i64[37] aligned
  in in2: f32[2050] aligned
  out out0: f32[1850] aligned
  loop {
    row = load i64 in1[p1]
    a = load f32 in0[@0{20}*41 + r0] @(row)
    b = load f32 in2[p2 + 50*r0]
    acc = reduce f32 dot (a, b)
  }
  once {
    store f32 set out0[p2 + 50*p1] = acc
  }
}
"""
    operands = [torch.randn(820), torch.randint(0, 20, (37,)), torch.randn(2050), torch.zeros(1850)]
    found, wanted, text = in_interpreter(run_text, case, SMALL, operands)
    torch.testing.assert_close(found[3], wanted[3])
    before, _, loop = text.partition("for k0")
    # which rows there are does not change on the way
    assert "tl.load(in1" in before and "tl.load(in1" not in loop


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_eight_bit_weight_is_read_as_it_is_stored(dtype: str, rows: int) -> None:
    assert in_interpreter(narrow_weight_faults, dtype, rows) == []
