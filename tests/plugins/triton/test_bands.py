"""Kernels whose elements lie in rows that data name are worked off in bands of columns."""

from __future__ import annotations

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

import torch

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Config
from polyfuse_triton.codegen import configs, emit
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling.choice import choose_plan
from triton_interpreted import in_interpreter, run_text

TARGET = known_target("sm_90")


def text(kind: str, rows: int, columns: int, batch: int = 1, index: str = "whole") -> str:
    """Rows that are gathered, or added to, as an index says for each element or for each row."""
    whole, numbers = rows * columns * batch, rows * batch * (columns if index == "whole" else 1)
    at = f"{rows * columns}*b + {columns}*p0 + p1"
    named = at if index == "whole" else f"{rows}*b + p0"
    there = f"{rows * columns}*b + {columns}*@0{{{rows}}} + p1"
    body = [f"v1 = load i64 in0[{named}]"]
    if kind == "gather":
        body += [f"v2 = load f32 in1[{there}] @(v1)", f"store f32 set out0[{at}] = v2"]
    else:
        body += [f"v2 = load f32 in1[{at}]", f"store f32 {kind} out0[{there}] @(v1) = v2"]
    written = "out" if kind == "gather" else "inout"
    lines = "\n".join("    " + line for line in body)
    return (
        f"kernel k on cuda {{\n  numerics fast\n"
        f"  axes b{{{batch}}} ~ {batch}, p0{{{rows}}} ~ {rows}, p1{{{columns}}} ~ {columns}\n"
        f"  in in0: i64[{numbers}] aligned\n  in in1: f32[{whole}] aligned\n"
        f"  {written} out0: f32[{whole}] aligned\n  once {{\n{lines}\n  }}\n}}"
    )


def kernel(*given: object) -> Kernel:
    found = parse(text(*given))
    assert isinstance(found, Kernel)
    return found


@pytest.mark.parametrize("kind", ["gather", "add", "set"])
def test_neighbouring_programs_take_one_row_after_the_other(kind):
    made = kernel(kind, 16384, 4096)
    plan = choose_plan(made, TARGET)
    assert plan.in_bands and [(dim.name, dim.block) for dim in plan.dims] == [("y", 8), ("x", 128)]
    assert "yb = program % 2048\n    xb = program // 2048" in emit(made, None, TARGET).text


@pytest.mark.parametrize(
    ("rows", "columns", "batch", "index"),
    [
        (1024, 4096, 1, "whole"),  # all rows stay in the last cache
        (1024, 4096, 64, "whole"),  # those of one batch do
        (16384, 4096, 1, "rows"),  # rows are moved whole
        (1 << 20, 256, 1, "whole"),  # no band stays in the last cache
    ],
)
def test_where_bands_gain_nothing_there_are_none(rows, columns, batch, index):
    assert not choose_plan(kernel("gather", rows, columns, batch, index), TARGET).in_bands


def test_narrower_bands_of_more_rows():
    plan = choose_plan(kernel("gather", 40000, 4096), TARGET)
    assert plan.in_bands and plan.dims[1].block == 64


def test_every_candidate_is_in_bands():
    made = kernel("add", 16384, 4096)
    assert len(configs(made, TARGET)) > 3
    assert all(choose_plan(made, TARGET, config).in_bands for config in configs(made, TARGET))


@pytest.mark.parametrize("kind", ["gather", "add"])
@pytest.mark.parametrize("config", [None, Config.of(x=32, y=2)])
def test_bands_give_the_same(kind, config):
    rows, columns, batch = 50, 272, 2
    index = torch.randint(0, rows, (batch * rows * columns,))
    operands = (index, torch.randn(index.numel()), torch.randn(index.numel()))
    found, wanted, made = in_interpreter(run_text, text(kind, rows, columns, batch), config, operands, 40_000)
    assert "YBLOCK" in made
    torch.testing.assert_close(found[2], wanted[2])
