"""Long rows whose chunks are programs that run side by side: interpreted, and compiled."""

from __future__ import annotations

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.text.parse import parse
from polyfuse.plugin import Config, Source
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import configs, emit
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling.choice import choose_plan
from triton_interpreted import in_interpreter, run_text

ROWS, LENGTH = 3, 2603
JOINED = Config.of(rows=3, r=512)
"""Six chunks of each row, the last of them short."""
WALKED = Config.of(rows=4, r=256, programs=4)
"""Four programs for each row, which has eleven chunks; the last one has two of them."""
TARGET = known_target("sm_90")


def text(body: str, results: str = "", rows: int = ROWS, length: int = LENGTH, dtype: str = "f32") -> str:
    """A kernel over rows of `in0`, which gives `out0` point by point, and other results."""
    return (
        f"kernel k on cuda {{\nnumerics fast\naxes p0{{{rows}}} ~ {rows}\nraxes r0{{{length}}} ~ {length}\n"
        f"in in0: {dtype}[{rows * length}] aligned\nout out0: {dtype}[{rows * length}] aligned\n{results}"
        f"{body}}}"
    ).replace("ROW", f"[{length}*p0 + r0]")


def reduced(kind: str, dtype: str) -> str:
    """Each number with what its row has in common added, or beside its position."""
    if kind in ("argmin", "argmax"):
        return text(
            f"loop {{\n  v1 = load {dtype} in0ROW\n  v2 = index i64 <r0>\n"
            f"  v3, v4 = reduce {dtype} {kind} (v1, v2)\n}}\n"
            f"loop {{\n  v5 = load {dtype} in0ROW\n  v6 = add {dtype} (v5, v3)\n"
            f"  store {dtype} set out0ROW = v6\n}}\nonce {{\n  store i64 set out1[p0] = v4\n}}\n",
            results=f"out out1: i64[{ROWS}]\n",
            dtype=dtype,
        )
    return text(
        f"loop {{\n  v1 = load {dtype} in0ROW\n  v3 = reduce {dtype} {kind} (v1)\n}}\n"
        f"loop {{\n  v5 = load {dtype} in0ROW\n  v6 = add {dtype} (v5, v3)\n"
        f"  store {dtype} set out0ROW = v6\n}}\n",
        dtype=dtype,
    )


NORMALISED = """loop {
  v1 = load f32 in0ROW
  m, s, n = reduce f32 welford (v1)
}
once {
  v2 = div f32 (s, n)
  v3 = rsqrt f32 (v2)
  store f32 set out1[p0] = v2
}
loop {
  v4 = load f32 in0ROW
  v5 = sub f32 (v4, m)
  v6 = mul f32 (v5, v3)
  store f32 set out0ROW = v6
}
"""
SOFTMAX = """loop {
  v1 = load f32 in0ROW
  m, s = reduce f32 online_softmax (v1)
}
loop {
  v4 = load f32 in0ROW
  v5 = sub f32 (v4, m)
  v6 = exp f32 (v5)
  v7 = div f32 (v6, s)
  store f32 set out0ROW = v7
}
"""
TYPES = {"f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64}


def numbers(dtype: str, count: int = ROWS * LENGTH) -> torch.Tensor:
    kind = TYPES[dtype]
    return (
        torch.randn(count, dtype=kind) if kind.is_floating_point else torch.randint(-9, 9, (count,)).to(kind)
    )


def outcome(
    made: str, operands: list[torch.Tensor], config: Config = JOINED
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    found, wanted, written = in_interpreter(run_text, made, config, operands)
    assert "wait_for(" in written and ("for r0" in written) == (config is WALKED)
    return found, wanted


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["sum", "min", "max", "argmin", "argmax"])
def test_chunks_give_what_the_row_gives(kind, dtype):
    given = numbers(dtype)
    positions = [torch.zeros(ROWS, dtype=torch.int64)] if kind in ("argmin", "argmax") else []
    found, wanted = outcome(reduced(kind, dtype), [given, torch.zeros_like(given), *positions])
    for got, true in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", ["sum", "argmax", "welford", "online_softmax"])
def test_programs_that_walk_their_part_of_a_row(kind):
    given, more = torch.randn(5 * LENGTH) * 3 + 100, []
    if kind == "online_softmax":
        given = torch.randn(5, LENGTH) * 10
        given[1, 512:1024], given[2] = -torch.inf, -torch.inf
        given[3, 2599], given[4, 2599] = torch.inf, torch.nan
        made = text(SOFTMAX, rows=5)
    elif kind == "welford":
        made, more = text(NORMALISED, results="out out1: f32[5]\n", rows=5), [torch.zeros(5)]
    else:
        given, more = numbers("f32"), [torch.zeros(ROWS, dtype=torch.int64)] if kind == "argmax" else []
        made = reduced(kind, "f32")
    found, wanted = outcome(made, [given.view(-1), torch.zeros(given.numel()), *more], WALKED)
    if kind == "online_softmax":
        wanted[1] = torch.softmax(given, 1).view(-1)
    for got, true in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(got, true, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_matmuls_of_a_row():
    given = 1 + torch.randn(ROWS * LENGTH) / 1000
    found, wanted = outcome(reduced("prod", "f32"), [given, torch.zeros_like(given)])
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_normalised_rows():
    given = torch.randn(ROWS * LENGTH) * 3 + 100
    made = text(NORMALISED, results=f"out out1: f32[{ROWS}]\n")
    found, wanted = outcome(made, [given, torch.zeros_like(given), torch.zeros(ROWS)])
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found[2], given.view(ROWS, LENGTH).var(1, correction=0), rtol=1e-4, atol=0)


def test_normalised_rows_whose_first_chunk_has_nan():
    given = torch.randn(ROWS * LENGTH)
    given[LENGTH + 3] = float("nan")
    made = text(NORMALISED, results=f"out out1: f32[{ROWS}]\n")
    found, _ = outcome(made, [given, torch.zeros_like(given), torch.zeros(ROWS)])
    assert found[2].isnan().tolist() == [False, True, False]
    assert found[1].view(ROWS, LENGTH).isnan().all(1).tolist() == [False, True, False]


@pytest.mark.slow
def test_softmax():
    """Of rows that hold random numbers, and what is special in a chunk, everywhere and in one element."""
    given = torch.randn(5, LENGTH) * 10
    given[1, 512:1024] = -torch.inf
    given[2] = -torch.inf
    given[3, 2599], given[4, 2599] = torch.inf, torch.nan
    found, _ = outcome(text(SOFTMAX, rows=5), [given.view(-1), torch.zeros(5 * LENGTH)])
    wanted = torch.softmax(given, 1)
    torch.testing.assert_close(found[1].view(5, LENGTH), wanted, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_a_row_that_is_changed_in_place():
    made = reduced("max", "f32").replace("in in0", "inout in0").replace("set out0", "set in0")
    given = numbers("f32")
    found, wanted = outcome(made, [given, torch.zeros_like(given)])
    assert torch.equal(found[0], wanted[0]) and not torch.equal(found[0], given)


def test_rows_are_among_what_tuning_tries():
    made = parse(text(SOFTMAX, rows=256, length=200704))
    (joined,) = (c for c in configs(made, TARGET) if c.get("rows") == 3)
    meta = KernelMeta.parse(emit(made, joined, TARGET).meta)
    assert meta.cluster == 13 and meta.grid == (256, 1, 1) and meta.zeroed == 2 + 2 * 2 * 256 * 13
    assert meta.num_warps == 16 and dict(meta.constexprs) == {"RBLOCK": 16384}
    # where smaller clusters suffice, they are of a size that every device has room for
    fewer = parse(text(SOFTMAX, rows=256, length=50257))
    assert KernelMeta.parse(emit(fewer, Config.of(rows=3), TARGET).meta).cluster == 7


@pytest.mark.parametrize(
    ("made", "target"),
    [
        (text(SOFTMAX, rows=256, length=200704), "sm_80"),
        (text(SOFTMAX, rows=256, length=4096), "sm_90"),
        (text(SOFTMAX, rows=256, length=1 << 20), "sm_90"),
    ],
    ids=["no clusters", "short", "too long"],
)
def test_rows_that_no_cluster_holds(made, target):
    with pytest.raises(UnsupportedError, match="no rows that a cluster of programs could hold"):
        emit(parse(made), Config.of(rows=3), known_target(target))


def test_what_every_chunk_would_add_keeps_the_row_together():
    made = text(
        "once {\n  v9 = load f32 in0[p0]\n  store f32 add out1[p0] = v9\n}\n" + SOFTMAX,
        results="inout out1: f32[256]\n",
        rows=256,
        length=200704,
    )
    with pytest.raises(UnsupportedError, match="cluster"):
        emit(parse(made), Config.of(rows=3), TARGET)


@pytest.mark.quick(1)
@pytest.mark.each_value
@pytest.mark.parametrize("arch", [90, 100])
@pytest.mark.parametrize("body", [SOFTMAX, NORMALISED], ids=["softmax", "normalised"])
def test_compiles(body, arch):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    results = "out out1: f32[256]\n" if body is NORMALISED else ""
    made = parse(text(body, results=results, rows=256, length=200704))
    source = emit(made, Config.of(rows=3), known_target(f"sm_{arch}"))
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    built = compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False)
    assert built.spilled_bytes == 0 and built.registers <= 128
    # each number is read once: 32 to a thread, four at a time
    assert built.ptx.count("ld.global.v4") == 8


GRADIENT = """loop {
  v1 = load f32 in0ROW
  v2 = load f32 in1ROW
  v3 = mul f32 (v1, v2)
  s = reduce f32 sum (v3)
}
loop {
  v4 = load f32 in0ROW
  v5 = load f32 in1ROW
  v6 = mul f32 (v5, s)
  v7 = mul f32 (v4, v5)
  v8 = sub f32 (v7, v6)
  store f32 set out0ROW = v8
}
"""


@pytest.mark.parametrize(
    ("body", "rows", "length", "joined"),
    [
        (GRADIENT, 2048, 50304, True),
        (GRADIENT, 2048, 65536, True),
        (GRADIENT, 2048, 65537, False),
        (GRADIENT, 2048, 16384, False),
        (GRADIENT, 64, 50304, False),
    ],
    ids=["long", "longest", "too long", "short", "few"],
)
def test_rows_that_are_held_together_without_tuning(body, rows, length, joined):
    more = f"in in1: f32[{rows * length}] aligned\n"
    made = text(body, rows=rows, length=length).replace("out out0", more + "out out0")
    plan = choose_plan(parse(made), TARGET)
    assert plan.joins == joined and (not joined or plan.chunks <= 8)
    assert not choose_plan(parse(made), known_target("sm_80")).joins
    assert configs(parse(made), TARGET)[0].get("rows") == (3 if joined else configs_rows(plan))


TWO_EXCHANGES = """loop {
  v1 = load f32 in0ROW
  m = reduce f32 max (v1)
}
loop {
  v2 = load f32 in0ROW
  v3 = sub f32 (v2, m)
  v4 = mul f32 (v3, v3)
  s = reduce f32 sum (v4)
}
loop {
  v5 = load f32 in0ROW
  v6 = mul f32 (v5, s)
  store f32 set out0ROW = v6
}
"""


@pytest.mark.parametrize(
    ("body", "rows", "length", "programs"),
    [
        (SOFTMAX, 2048, 128256, 8),
        (SOFTMAX, 2048, 50304, 2),
        (NORMALISED, 512, 262144, 8),
        (SOFTMAX, 2048, 50257, 0),
        (SOFTMAX, 32, 128256, 0),
        (SOFTMAX, 2048, 1 << 20, 0),
        (TWO_EXCHANGES, 2048, 50304, 0),
    ],
    ids=["long", "two", "moments", "not aligned", "few", "too long", "two exchanges"],
)
def test_rows_that_are_walked_together_without_tuning(body, rows, length, programs):
    made = parse(text(body, f"out out1: f32[{rows}]\n" if body is NORMALISED else "", rows, length))
    plan = choose_plan(made, TARGET)
    assert (plan.walkers, plan.walks and plan.joins) == (programs, programs > 0)
    assert choose_plan(made, known_target("sm_80")).walkers == 0
    config = configs(made, TARGET)[0]
    assert (config.get("rows") == 4, config.get("programs")) == (programs > 0, programs)
    assert choose_plan(made, TARGET, config) == plan


@pytest.mark.parametrize("config", [Config.of(rows=4, programs=1), Config.of(rows=4, r=4096)], ids=str)
def test_rows_that_no_cluster_walks(config):
    with pytest.raises(UnsupportedError, match=r"a cluster of programs could walk|rows of one chunk"):
        emit(parse(text(SOFTMAX)), config, TARGET)


def configs_rows(plan) -> int:
    return 1 if plan.persistent else 2


@pytest.mark.parametrize(("length", "joined"), [(20480, False), (32768, True)])
def test_rows_that_stay_in_the_cache_are_walked(length, joined):
    made = text(GRADIENT.replace("in1", "in0"), rows=2048, length=length)
    assert choose_plan(parse(made), TARGET).joins == joined


def test_a_gradient_held_together_does_not_spill():
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    made = text(GRADIENT, rows=2048, length=65536)
    source = emit(
        parse(made.replace("out out0", f"in in1: f32[{2048 * 65536}] aligned\nout out0")), None, TARGET
    )
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    built = compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, False)
    assert KernelMeta.parse(source.meta).cluster == 8 and built.spilled_bytes == 0
    # two programs of eight warps have room on a multiprocessor
    assert built.registers <= 128
