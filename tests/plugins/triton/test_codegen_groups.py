"""Rows of which groups add to one row each: summed up in registers, without atomic operations."""

from __future__ import annotations

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.plugin import Config
from triton_interpreted import gradient_faults, in_interpreter, run_text


def normalised(rows: int, columns: int, count: int, index: str = "") -> str:
    groups = -(-rows // count)
    index = index or f"r0 + {columns}*(p0 // {count})"
    return f"""kernel k on cuda {{
numerics fast
axes p0{{{rows}}} ~ {rows}
raxes r0{{{columns}}} ~ {columns}
in in0: f32[{rows * columns}]
inout inout0: f32[{groups * columns}]
inout inout1: f32[{groups * columns}]
out out0: f32[{rows * columns}]
loop {{
  v1 = load f32 in0[{columns}*p0 + r0]
  v2 = mul f32 (v1, v1)
  store f32 add inout0[{index}] = v2
  v3 = reduce f32 sum (v1)
}}
loop {{
  v4 = load f32 in0[{columns}*p0 + r0]
  v5 = add f32 (v4, v3)
  store f32 add inout1[{index}] = v5
  store f32 set out0[{columns}*p0 + r0] = v5
}}
}}"""


def pointwise(rows: int, columns: int, count: int) -> str:
    groups = -(-rows // count)
    return f"""kernel k on cuda {{
numerics fast
axes p0{{{rows}}} ~ {rows}, p1{{{columns}}} ~ {columns}
in in0: f32[{rows * columns}]
inout inout0: f32[{groups * columns}]
out out0: f32[{rows * columns}]
once {{
  v1 = load f32 in0[{columns}*p0 + p1]
  v2 = neg f32 (v1)
  store f32 set out0[{columns}*p0 + p1] = v2
  store f32 add inout0[{columns}*(p0 // {count}) + p1] = v1
}}
}}"""


def in_heads(rows: int, heads: int, width: int, count: int) -> str:
    columns = heads * width
    groups = -(-rows // count)
    return f"""kernel k on cuda {{
numerics fast
axes p0{{{rows}}} ~ {rows}
raxes r0{{{heads}}} ~ {heads}, r1{{{width}}} ~ {width}
in in0: f32[{rows * columns}]
in in1: f32[{width}]
inout inout0: f32[{groups * columns}]
out out0: f32[{rows}]
loop {{
  v1 = load f32 in0[{columns}*p0 + {width}*r0 + r1]
  v2 = load f32 in1[r1]
  v3 = mul f32 (v1, v2)
  store f32 add inout0[{columns}*(p0 // {count}) + {width}*r0 + r1] = v3
  v4 = reduce f32 sum (v3)
}}
once {{
  store f32 set out0[p0] = v4
}}
}}"""


def checked(text: str, operands: list[torch.Tensor], config: Config | None = None) -> str:
    found, wanted, text = in_interpreter(run_text, text, config, operands)
    for got, true in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-4)
    return text


def test_rows_of_several_axes():
    operands = [torch.randn(10 * 24), torch.randn(8), torch.randn(4 * 24), torch.zeros(10)]
    assert "atomic" not in checked(in_heads(10, 3, 8, 3), operands)


SHAPES = [(12, 64, 4), (13, 64, 4), (12, 37, 4), (3, 64, 8), (7, 300, 3), (5, 1, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_with_reductions(shape):
    rows, columns, count = shape
    groups = -(-rows // count)
    matrix = torch.randn(rows * columns)
    sums = [torch.randn(groups * columns) for _ in range(2)]
    text = checked(normalised(*shape), [matrix, *sums, torch.zeros(rows * columns)])
    if columns > 1:
        assert "atomic" not in text and text.count("for member in") == 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_by_themselves(shape):
    rows, columns, count = shape
    groups = -(-rows // count)
    operands = [torch.randn(rows * columns), torch.randn(groups * columns), torch.zeros(rows * columns)]
    text = checked(pointwise(*shape), operands)
    if columns > 1:
        assert "atomic" not in text and "for member in" in text


@pytest.mark.parametrize("config", [Config.of(rows=2, r=16), Config.of(rows=1, r=64, warps=1)], ids=str)
def test_other_tilings(config):
    operands = [torch.randn(12 * 64), torch.randn(192), torch.randn(192), torch.zeros(12 * 64)]
    text = checked(normalised(12, 64, 4), operands, config)
    assert ("atomic" in text) == (config.get("rows") == 2)


@pytest.mark.parametrize("index", ["r0", "64*(p0 // 4)", "32*(p0 // 4) + r0", "64*(p0 % 3) + r0"])
def test_other_indices_are_added_to_atomically(index):
    operands = [torch.randn(12 * 64), torch.randn(192), torch.randn(192), torch.zeros(12 * 64)]
    text = checked(normalised(12, 64, 4, index), operands)
    assert "atomic" in text


@pytest.mark.slow
def test_gradients_of_weights_on_the_whole_path():
    assert in_interpreter(gradient_faults, 1100, 300) == []


def test_sums_in_a_set_order_are_no_reason_to_refuse():
    operands = [torch.randn(12 * 64), torch.randn(192), torch.randn(192), torch.zeros(12 * 64)]
    text = normalised(12, 64, 4).replace("numerics fast", "numerics fast, deterministic")
    assert "atomic" not in checked(text, operands)
