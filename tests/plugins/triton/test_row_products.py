"""Products of a matrix and a row: the row's norm, what is loaded first, and which become one launch."""

from __future__ import annotations

import re

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.text.parse import parse_kernel
from polyfuse_triton.codegen import emit, may_group
from polyfuse_triton.reductions.row_products import matrices_of_row, normalises_row
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling.choice import choose_plan
from polyfuse_triton.tiling.register_pressure import Facts
from triton_interpreted import in_interpreter, run_text
from triton_rows import faults

HOPPER = known_target("sm_90")


def norm_and_product(results: int, depth: int, matrices: int = 1) -> str:
    """A kernel of an RMS norm and products of the row and matrices."""
    loads = "".join(
        f"""  a{k} = load bf16 in{k + 1}[{depth}*p0 + r0]
  b{k} = cast f32 (a{k})
  c{k} = mul f32 (n, b{k})
  t{k} = reduce f32 sum (c{k})
"""
        for k in range(matrices)
    )
    stores = "".join(f"  store f32 set out{k}[p0] = t{k}\n" for k in range(matrices))
    arguments = "".join(f"in in{k + 1}: bf16[{results * depth}]\n" for k in range(matrices))
    outputs = "".join(f"out out{k}: f32[{results}]\n" for k in range(matrices))
    return f"""kernel k on cuda {{
numerics fast
axes p0{{{results}}} ~ {results}
raxes r0{{{depth}}} ~ {depth}
in in0: bf16[{depth}]
{arguments}{outputs}loop {{
  x = load bf16 in0[r0]
  y = cast f32 (x)
  z = mul f32 (y, y)
  s = reduce f32 sum (z)
}}
once {{
  q = rsqrt f32 (s)
}}
loop {{
  x2 = load bf16 in0[r0]
  y2 = cast f32 (x2)
  n = mul f32 (y2, q)
{loads}}}
once {{
{stores}}}
}}"""


@pytest.mark.quick(1)
@pytest.mark.parametrize("width, dtype, norm", [(256, "bfloat16", "RMSNorm"), (320, "float16", "LayerNorm")])
def test_a_layer_of_one_row(width: int, dtype: str, norm: str) -> None:
    wrong, texts = in_interpreter(faults, width, dtype, norm)
    assert not wrong
    # the two projections of the row are one launch
    assert sum("if program <" in text for text in texts) == 1


@pytest.mark.parametrize("matrices", [1, 2])
def test_matrices_are_loaded_before_the_row_is_reduced(matrices: int) -> None:
    text = emit(parse_kernel(norm_and_product(2048, 2048, matrices)), None, HOPPER).text
    before, behind = text.split("tl.sum(", 1)
    assert len(re.findall(r"tl\.load\(in[1-9] ", before)) == matrices and "tl.load" not in behind


def test_loads_that_do_not_fit_in_registers_wait() -> None:
    kernel = parse_kernel(norm_and_product(2048, 4096, 20))
    plan = choose_plan(kernel, HOPPER)
    before = emit(kernel, None, HOPPER).text.split("tl.sum(", 1)[0]
    early = len(re.findall(r"tl\.load\(in[1-9] ", before))
    assert 0 < early < 20 and early * plan.elements * 2 <= 256 * 32 * plan.num_warps


def test_the_row_is_reduced_once_for_all_rows_of_the_matrix() -> None:
    """It has one row, whatever the tile has."""
    kernel = parse_kernel(norm_and_product(2048, 2048))
    plan = choose_plan(kernel, HOPPER)
    assert plan.persistent and [dim.block for dim in plan.dims] == [2, 2048]
    assert "broadcast_to" not in emit(kernel, None, HOPPER).text


@pytest.mark.parametrize("results, depth, matrices, tile", [
    (2048, 2048, 1, [2, 2048]),
    (512, 2048, 1, [2048]),
    (8192, 2048, 2, [2048]),
    (4096, 4096, 1, [2, 4096]),
    (4096, 256, 2, [8, 256]),
])  # fmt: skip
def test_tiles(results: int, depth: int, matrices: int, tile: list[int]) -> None:
    kernel = parse_kernel(norm_and_product(results, depth, matrices))
    facts = Facts.of(kernel)
    assert normalises_row(kernel, facts) and matrices_of_row(kernel, facts) == matrices
    assert [dim.block for dim in choose_plan(kernel, HOPPER).dims] == tile


def test_which_become_parts_of_a_launch() -> None:
    assert may_group(parse_kernel(norm_and_product(512, 2048)), HOPPER)
    # rows that no program holds
    assert not may_group(parse_kernel(norm_and_product(512, 1 << 17)), HOPPER)
    softmax = norm_and_product(512, 2048).replace("in0[r0]", "in1[2048*p0 + r0]")
    assert not may_group(parse_kernel(softmax), HOPPER)


def normalised_sum(rows: int, length: int = 2048) -> str:
    """A sum of parts that is stored, and its normalisation with what is added to it and a weight."""
    total = rows * length
    return f"""kernel k on cuda {{
numerics fast
axes p0{{{rows}}} ~ {rows}
raxes r0{{{length}}} ~ {length}
in in0: f32[{2 * total}] aligned
in in1: bf16[{total}] aligned
in in2: bf16[{length}] aligned
out out0: bf16[{total}] aligned
out out1: bf16[{total}] aligned
loop {{
  v1 = load f32 in0[{length}*p0 + r0]
  v2 = load f32 in0[{length}*p0 + r0 + {total}]
  v3 = add f32 (v1, v2)
  v4 = cast bf16 (v3)
  store bf16 set out0[{length}*p0 + r0] = v4
  v5 = load bf16 in1[{length}*p0 + r0]
  v6 = cast f32 (v5)
  v7 = add f32 (v6, v3)
  v8 = mul f32 (v7, v7)
  v9 = reduce f32 sum (v8)
}}
once {{
  v10 = rsqrt f32 (v9)
}}
loop {{
  w1 = load f32 in0[{length}*p0 + r0]
  w2 = load f32 in0[{length}*p0 + r0 + {total}]
  w3 = add f32 (w1, w2)
  w5 = load bf16 in1[{length}*p0 + r0]
  w6 = cast f32 (w5)
  w7 = add f32 (w6, w3)
  v11 = mul f32 (w7, v10)
  v12 = load bf16 in2[r0]
  v13 = cast f32 (v12)
  v14 = mul f32 (v11, v13)
  v15 = cast bf16 (v14)
  store bf16 set out1[{length}*p0 + r0] = v15
}}
}}"""


@pytest.mark.parametrize(("rows", "waiting"), [(64, 0), (4096, 2)])
def test_few_programs_read_before_they_store_or_reduce(rows: int, waiting: int) -> None:
    lines = emit(parse_kernel(normalised_sum(rows)), None, HOPPER).text.splitlines()
    first = next(k for k, line in enumerate(lines) if "tl.store" in line or "tl.sum" in line)
    loads = [k for k, line in enumerate(lines) if "tl.load" in line]
    assert len(loads) == 4 and sum(k > first for k in loads) == waiting


def test_what_few_programs_read_first_is_what_they_compute_with() -> None:
    operands = [torch.randn(2 * 3 * 64), *(torch.randn(n).bfloat16() for n in (3 * 64, 64, 3 * 64, 3 * 64))]
    found, wanted, _ = in_interpreter(run_text, normalised_sum(3, 64), None, operands)
    for got, true in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, true)
