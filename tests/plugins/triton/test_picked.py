"""Elements that data pick from rows come from the row that a program holds."""

from __future__ import annotations

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

import torch

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Config
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling.choice import choose_plan
from triton_interpreted import in_interpreter, run_text

TARGET = known_target("sm_90")
TYPES = {"i32": torch.int32, "i64": torch.int64, "f32": torch.float32, "bf16": torch.bfloat16}


def text(rows: int, length: int, index: str = "i64", of: int = 0, data: str = "f32") -> str:
    """One of `of` elements of each row for each of its `length` points, and a second one mirrored."""
    of = of or length
    at = f"{length}*p0 + p1"
    wide = "".join(f"    w{k} = cast f32 (v{k})\n" for k in (2, 3))
    total = "v4 = add f32 (v2, v3)"
    if data != "f32":
        total = f"{wide.strip()}\n    w4 = add f32 (w2, w3)\n    v4 = cast {data} (w4)"
    return (
        f"kernel k on cuda {{\n  numerics fast\n  axes p0{{{rows}}} ~ {rows}, p1{{{length}}} ~ {length}\n"
        f"  in in0: {index}[{rows * length}] aligned\n  in in1: {data}[{rows * of}] aligned\n"
        f"  out out0: {data}[{rows * length}] aligned\n  once {{\n    v1 = load {index} in0[{at}]\n"
        f"    v2 = load {data} in1[{of}*p0 + @0{{{of}}}] @(v1)\n    v3 = load {data} in1[{of}*p0 + p1]\n"
        f"    {total}\n    store {data} set out0[{at}] = v4\n  }}\n}}"
    )


def kernel(*given: object) -> Kernel:
    found = parse(text(*given))
    assert isinstance(found, Kernel)
    return found


def test_a_row_is_read_once():
    made = kernel(16384, 4096)
    assert choose_plan(made, TARGET).picked == {"in1"}
    found = emit(made, None, TARGET).text
    assert "tl.gather(" in found and found.count("tl.load(in1") == 1


@pytest.mark.parametrize(
    ("rows", "length", "more"),
    [
        (64, 4096, ()),  # too few rows for a program each
        (16384, 3000, ()),  # no power of two
        (131072, 512, ()),  # a row is a few lines of the cache anyway
        (16384, 16384, ()),  # too long
        (16384, 8192, ("i64", 0, "i8")),  # elements of a byte were not measured
        (16384, 1024, ("i64", 4096)),  # most of the row would be read for nothing
    ],
)
def test_where_memory_is_asked_for_elements(rows, length, more):
    made = kernel(rows, length, *more)
    assert not choose_plan(made, TARGET).picked and "tl.gather" not in emit(made, None, TARGET).text


def test_a_tile_that_is_no_row_asks_memory():
    assert "tl.gather" not in emit(kernel(16384, 4096), Config.of(x=1024), TARGET).text


@pytest.mark.parametrize(("index", "data"), [("i64", "f32"), ("i32", "bf16")])
def test_picked_elements_are_the_same(index, data):
    rows, length = 528, 8192 // TYPES[data].itemsize
    where = torch.randint(0, length, (rows * length,), dtype=TYPES[index])
    values = torch.randn(rows * length).to(TYPES[data])
    found, wanted, made = in_interpreter(
        run_text, text(rows, length, index, 0, data), None, (where, values, torch.empty_like(values))
    )
    assert "tl.gather" in made and torch.equal(found[2], wanted[2])
