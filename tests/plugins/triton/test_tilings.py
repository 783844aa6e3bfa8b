"""Tiles fit the data: no program idles beside a border where blocks of another length avoid it."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.parse import parse
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling import choose_plan


def resampled(side: int, kind: str = "f32") -> Kernel:
    """Images whose rows and columns are repeated."""
    half = side // 2
    found = parse(
        f"""kernel k on cuda {{
  numerics fast
  axes p0{{4096}} ~ 4096, p1{{{side}}} ~ {side}, p2{{{side}}} ~ {side}
  in in0: {kind}[{4096 * half * half}] aligned
  out out0: {kind}[{4096 * side * side}] aligned
  once {{
    v1 = load {kind} in0[{half * half}*p0 + {half}*(p1 // 2) + (p2 // 2)]
    store {kind} set out0[{side * side}*p0 + {side}*p1 + p2] = v1
  }}
}}"""
    )
    assert isinstance(found, Kernel)
    return found


@pytest.mark.parametrize(
    ("side", "kind", "rows", "columns"),
    [(224, "f32", 32, 32), (256, "f32", 4, 256), (768, "f32", 4, 256), (192, "bf16", 32, 64)],
)
def test_blocks_divide_rows_where_they_can(side, kind, rows, columns):
    plan = choose_plan(resampled(side, kind), known_target("sm_90"))
    assert [(dim.name, dim.block) for dim in plan.dims] == [("y", rows), ("x", columns)]


def test_blocks_are_no_shorter_than_a_line_of_the_cache():
    # nothing divides 222: the least waste is taken, in blocks that a warp reads whole lines with
    plan = choose_plan(resampled(222), known_target("sm_90"))
    (x,) = [dim for dim in plan.dims if dim.name == "x"]
    assert x.block >= 32 and -(-222 // x.block) * x.block <= 224
