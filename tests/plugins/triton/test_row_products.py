"""Products of a matrix and a row: the row's norm, what is loaded first, and which become one launch."""

from __future__ import annotations

import re

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.text.parse import parse_kernel
from polyfuse_triton.codegen import emit, may_group
from polyfuse_triton.reductions.row_products import matrices_of_row, normalises_row
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling.choice import choose_plan
from polyfuse_triton.tiling.register_pressure import Facts
from triton_interpreted import in_interpreter
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
