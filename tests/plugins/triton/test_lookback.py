"""Long scans of few rows, whose chunks are programs that wait for each other: interpreted, and compiled."""

from __future__ import annotations

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Config, Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import emit
from polyfuse_triton.target import known_target
from triton_interpreted import in_interpreter, run_in_groups

ROWS, LENGTH = 2, 40003
CHUNKS = Config.of(r=2048, warps=4)
"""Twenty chunks of each row, of which four are a group where these tests interpret."""


def text(kind: str, dtype: str, rows: int = ROWS, size: str = str(LENGTH), more: str = "") -> str:
    """A scan of twice the numbers of each row, which is stored with one added."""
    position = "  v5 = index i64 <r0>\n" if kind in ("min", "max") else ""
    operands, results = ("(v2, v5)", "v3, v6") if position else ("(v2)", "v3")
    stored = f"  store i64 set out1[{size}*p0 + r0] = v6\n" if position else ""
    second = f"out out1: i64[{rows}*{size}] aligned\n" if position else ""
    symbols = "symbols s0{2..}\n" if size == "s0" else ""
    argument = f"size s0: i64 ~ {LENGTH}\n" if symbols else ""
    return (
        f"kernel k on cuda {{\n{symbols}numerics fast\naxes p0{{{rows}}} ~ {rows}\n"
        f"raxes r0{{{size}}} ~ {LENGTH}\nin in0: {dtype}[{rows}*{size}] aligned\n"
        f"out out0: {dtype}[{rows}*{size}] aligned\n{second}{argument}loop {{\n"
        f"  v1 = load {dtype} in0[{size}*p0 + r0]\n  v2 = add {dtype} (v1, v1)\n{position}"
        f"  {results} = scan {dtype} {kind} {operands}\n{more}"
        f"  store {dtype} set out0[{size}*p0 + r0] = v3\n{stored}}}\n}}"
    )


def numbers(dtype: torch.dtype, kind: str, count: int = ROWS * LENGTH) -> torch.Tensor:
    if dtype.is_floating_point:
        found = torch.randn(count, dtype=dtype)
        return 0.5 + found / 100 if kind == "prod" else found
    return torch.randint(-9, 9, (count,)).to(dtype)


CASES = [
    *((kind, dtype) for kind in ("sum", "prod", "min", "max") for dtype in ("f32", "f64", "i32", "i64")),
    *(("logsumexp", dtype) for dtype in ("f32", "f64")),
    *(("sum", dtype) for dtype in ("i16", "u8")),
    *(("max", dtype) for dtype in ("i8", "u8")),
]


def torch_type(dtype: str) -> torch.dtype:
    kinds = {"f32": torch.float32, "f64": torch.float64, "u8": torch.uint8}
    return kinds.get(dtype) or getattr(torch, f"int{dtype[1:]}")


@pytest.mark.quick(2)
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_chunks_give_what_the_row_gives(kind, dtype):
    kind_of = torch_type(dtype)
    given = numbers(kind_of, kind)
    positions = [torch.zeros(given.shape, dtype=torch.int64)] if kind in ("min", "max") else []
    operands = [given, torch.zeros(given.shape, dtype=kind_of), *positions]
    found, wanted, made = in_interpreter(run_in_groups, 4, text(kind, dtype), CHUNKS, operands)
    assert "wait_for(" in made
    for got, true in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-3)


def test_nan_and_infinities_reach_all_that_follows():
    for kind in ("sum", "max", "logsumexp"):
        given = numbers(torch.float32, kind)
        given[7], given[LENGTH + 30000] = float("inf"), float("nan")
        operands = [given, torch.zeros_like(given)]
        if kind == "max":
            operands.append(torch.zeros(given.shape, dtype=torch.int64))
        found, wanted, _ = in_interpreter(run_in_groups, 4, text(kind, "f32"), CHUNKS, operands)
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-3, equal_nan=True)
        assert found[1][LENGTH + 30000 :].isnan().all() and not found[1][:7].isinf().any()


@pytest.mark.parametrize("length", [1, 2047, 2048, 2049, 8192, 16384, 16385])
def test_lengths_that_only_a_call_knows(length):
    given = numbers(torch.int64, "sum", ROWS * length)
    operands = [given, torch.zeros_like(given), length]
    found, wanted, made = in_interpreter(run_in_groups, 4, text("sum", "i64", size="s0"), CHUNKS, operands)
    assert "wait_for(" in made and torch.equal(found[1], wanted[1])


def test_two_scans_of_which_one_continues_the_other():
    more = "  v7 = scan f64 prod (v2)\n  v8 = scan f64 sum (v7)\n  store f64 set in0[40003*p0 + r0] = v8\n"
    made = text("sum", "f64", more=more).replace("in in0", "inout in0")
    given = numbers(torch.float64, "prod") / 2
    found, wanted, written = in_interpreter(run_in_groups, 4, made, CHUNKS, [given, torch.zeros_like(given)])
    assert written.count("if rb > 0:") == 3 * (1 + written.count("else:"))
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1])


def test_rows_of_which_there_are_many_are_walked():
    source = emit(parse(text("sum", "f32", rows=4096)), None, known_target("sm_90"))
    assert "wait_for(" not in source.text and KernelMeta.parse(source.meta).zeroed == 0


def test_what_another_chunk_reads_keeps_the_row_together():
    more = "  v7 = load f32 in0[40003*p0]\n  v8 = add f32 (v7, v3)\n  store f32 set in0[40003*p0 + r0] = v8\n"
    made = text("sum", "f32", more=more).replace("in in0", "inout in0")
    assert "wait_for(" not in emit(parse(made), None, known_target("sm_90")).text


def test_what_is_stored_once_for_each_row():
    once = "loop {\n", "once {\n  v8 = load f32 in0[40003*p0]\n  store f32 set out1[p0] = v8\n}\nloop {\n"
    made = text("sum", "f32").replace(*once).replace("once", "out out1: f32[2]\nonce", 1)
    given = numbers(torch.float32, "sum")
    operands = [given, torch.zeros_like(given), torch.zeros(ROWS)]
    found, wanted, written = in_interpreter(run_in_groups, 4, made, CHUNKS, operands)
    assert "wait_for(" in written and torch.equal(found[2], wanted[2])
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-3)
    # what adds for each row may not do so for each chunk
    added = made.replace("store f32 set out1", "store f32 add out1").replace("out out1", "inout out1")
    assert "wait_for(" not in emit(parse(added), None, known_target("sm_90")).text


@pytest.mark.quick(1)
@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("sum", "f32"),
        # ptxas takes five seconds for it
        pytest.param("max", "f64", marks=pytest.mark.slow),
        *(("sum", "i64"), ("max", "u8")),
    ],
)
def test_compiles(kind, dtype, arch):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(parse(text(kind, dtype)), None, known_target(f"sm_{arch}"))
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    made = compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False)
    assert made.spilled_bytes == 0
    assert "ld.volatile.global" in made.ptx and "atom.global" in made.ptx.replace(".gpu", "")
