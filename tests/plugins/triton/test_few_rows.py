"""Matmuls with few rows: which are streamed, into how many parts, and by which tiles."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from polyfuse.ir.expr import cast, load
from polyfuse.ir.kernel import Kernel, KernelPart
from polyfuse.ir.nodes import Reduction
from polyfuse.ir.text.parse import parse
from polyfuse.ir.types import DType
from polyfuse.plugin import Source
from polyfuse.symbolic import IndexLike, axis, symbol
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.codegen import configs, emit, may_group
from polyfuse_triton.matmul.few_rows import narrow_rows, streaming_parts
from polyfuse_triton.matmul.plan import matmul_of
from polyfuse_triton.target import known_target
from polyfuse_triton.target_info import target_info_of
from triton_gemms import Case, int4_text, kernel_of, matmul_faults
from triton_interpreted import in_interpreter
from triton_rows import gate_faults, projection_faults

HOPPER = known_target("sm_90")


def linear(
    rows: IndexLike,
    columns: int,
    depth: int,
    dtype: DType = DType.bf16,
    *,
    by_columns: bool = False,
    weight_first: bool = False,
) -> Reduction:
    """The sums of a linear layer; `by_columns`: its weight is contiguous along the results; `weight_first`:
    the weight is operand A.
    """
    row, column, inside = axis("i0", rows), axis("i1", columns), axis("k0", depth)
    x = load("x", row * depth + inside, dtype)
    w = load("w", inside * columns + column if by_columns else column * depth + inside, dtype)
    values, axes = ((w, x), (column, row)) if weight_first else ((x, w), (row, column))
    return Reduction("mm", axes, (inside,), ("sums",), row * columns + column, "dot", values)


@pytest.mark.parametrize(
    "columns, depth, parts",
    [
        (2048, 2048, 4),
        (512, 2048, 8),
        (8192, 2048, 1),
        (2048, 8192, 4),
        (4096, 4096, 2),
        (14336, 4096, 1),
        (128256, 2048, 1),
        (512, 512, 2),
    ],
)
@pytest.mark.parametrize("weight_first", [False, True])
def test_every_multiprocessor_reads(columns: int, depth: int, parts: int, weight_first: bool) -> None:
    assert streaming_parts(linear(8, columns, depth, weight_first=weight_first), HOPPER) == parts


@pytest.mark.parametrize(
    "rows, columns, depth, parts", [(1, 4096, 11008, 8), (16, 4096, 11008, 8), (8, 4096, 14336, 8)]
)
def test_parts_of_bytes_have_whole_steps(rows: int, columns: int, depth: int, parts: int) -> None:
    """11008 is 43 times 256, and eight parts would be walked in steps of 32 bytes."""
    plain = linear(rows, columns, depth)
    x, w = plain.values
    found = replace(plain, values=(x, cast(load("w", w.index, DType.i8), DType.bf16)))
    assert streaming_parts(found, HOPPER) == parts


def halves_of_bytes(rows: int, columns: int, depth: int, numbers: int) -> Reduction:
    """A weight of four bits in groups of so many numbers."""
    m, n = axis("i0", rows), axis("i1", columns)
    group, byte, half = axis("r0", depth // numbers), axis("r1", numbers // 2), axis("r2", 2)
    x = load("x", m * depth + group * numbers + byte * 2 + half, DType.bf16)
    w = cast(load("w", n * (depth // 2) + group * (numbers // 2) + byte, DType.u8), DType.bf16)
    return replace(linear(rows, columns, depth), raxes=(group, byte, half), values=(x, w))


@pytest.mark.parametrize("numbers", [64, 32])
@pytest.mark.parametrize(
    "rows, columns, parts", [(64, 14336, 1), (64, 11008, 2), (32, 14336, 2), (64, 4096, 4)]
)
def test_all_programs_of_short_groups_are_there_at_once(
    rows: int, columns: int, parts: int, numbers: int
) -> None:
    assert streaming_parts(halves_of_bytes(rows, columns, 4096, numbers), HOPPER) == parts


@pytest.mark.parametrize(
    "rows, columns, depth, parts, side",
    [
        (32, 11008, 4096, 4, 128),
        (64, 4096, 14336, 8, 128),
        # all 224 programs are there at once; 64 rows have one of them at a time, of which 516 are four turns
        (32, 14336, 4096, 1, 64),
        (64, 11008, 4096, 3, 64),
        (64, 14336, 4096, 2, 64),
        (64, 4096, 4096, 4, 64),
    ],
)
def test_wide_tiles_of_halves_of_bytes(rows: int, columns: int, depth: int, parts: int, side: int) -> None:
    """Two or three of them at a time on each multiprocessor, each with 1024 numbers of the depth at least."""
    assert streaming_parts(halves_of_bytes(rows, columns, depth, 128), HOPPER) == parts
    config = configs(kernel_of(int4_text(rows, columns, 128, parts)), HOPPER)[0]
    assert (config.get("m"), config.get("k")) == ((128, 64) if side == 128 else (64, 128))


@pytest.mark.parametrize(
    "rows, columns, parts, stages", [(32, 4096, 4, 3), (32, 14336, 2, 2), (64, 4096, 4, 3)]
)
def test_more_stages_where_all_programs_are_there_at_once(
    rows: int, columns: int, parts: int, stages: int
) -> None:
    config = configs(kernel_of(int4_text(rows, columns, 128, parts)), HOPPER)[0]
    assert (config.get("m"), config.get("k"), config.get("stages")) == (64, 128, stages)


def test_what_is_left_to_the_library() -> None:
    whole = {
        "one row is a sum of products": linear(1, 2048, 2048),
        "more rows are bound by arithmetic": linear(65, 2048, 2048),
        "few columns": linear(8, 128, 2048),
        "a depth with a rest": linear(8, 2048, 2000),
        "f32": linear(8, 2048, 2048, DType.f32),
        "contiguous along the results": linear(8, 2048, 2048, by_columns=True),
    }
    assert {why: streaming_parts(matmul, HOPPER) for why, matmul in whole.items()} == dict.fromkeys(whole, 0)
    assert streaming_parts(linear(8, 2048, 2048), known_target("sm_80")) == 0, "measured on Hopper alone"


@pytest.mark.parametrize("weight_first", [False, True])
def test_rows_of_an_unknown_number_count_as_the_most_there_can_be(weight_first: bool) -> None:
    def parts(*limits: int) -> int:
        return streaming_parts(linear(symbol("s0", *limits), 2048, 2048, weight_first=weight_first), HOPPER)

    assert parts(2, 16) == parts(33, 64) == 4
    assert parts(2, 65) == parts(2) == 0


def test_the_bias_of_up_to_16_rows_of_f32_is_the_librarys() -> None:
    """Whose matmul alone is slower then, and faster with 24 rows."""
    assert 16 < target_info_of(HOPPER).separate_bias_rows <= 24


CASES = (
    Case(8, 256, 256, batch=2, right_by_rows=False, out="f32"),
    Case(17, 300, 256, right_by_rows=False, epilogue="bias_gelu", out="bf16"),
    Case(64, 256, 384, right_by_rows=False, dtype="f16", out="f16", epilogue="residual"),
    Case("s0~9", 300, 256, right_by_rows=False, epilogue="bias_gelu", out="bf16", most=16),
    Case("s0~33", 256, 256, batch=2, right_by_rows=False, out="f32", most=64),
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.m}-{c.n}-{c.epilogue}")
def test_values(case: Case) -> None:
    kernel = kernel_of(case)
    found = matmul_of(kernel)
    assert found is not None and found.shape[1] == case.n, "the weight's columns come first"
    config = configs(kernel, HOPPER)[0]
    assert config.get("m") == 32 and config.get("k") == 128
    seed = random.randrange(1 << 30)
    faults, text = in_interpreter(matmul_faults, case, config, seed)
    assert faults == [], f"seed {seed}\n{text}"


def test_the_tile_of_many_columns() -> None:
    kernel = kernel_of(Case(16, 4096, 2048, right_by_rows=False, out="bf16"))
    config = configs(kernel, HOPPER)[0]
    assert [config.get(name) for name in ("m", "n", "k", "warps", "stages")] == [64, 16, 128, 4, 5]
    # the weight is operand A, whose rows fill the instruction
    assert "(kla + mla * 2048)" in emit(kernel, config, HOPPER).text


def test_which_become_parts_of_a_launch() -> None:
    few = Case(16, 512, 2048, right_by_rows=False, out="bf16")
    assert may_group(kernel_of(few), HOPPER)
    assert may_group(kernel_of(replace(few, epilogue="bias_gelu")), HOPPER)
    for other in (
        replace(few, m=128),
        replace(few, m="s0~16", most=64),
        replace(few, dtype="f32", out="f32"),
    ):
        assert not may_group(kernel_of(other), HOPPER), str(other)


@pytest.mark.quick(1)
def test_projections_of_one_operand_are_one_launch() -> None:
    """Different numbers of columns, none of which fills its last tile."""
    wrong, texts = in_interpreter(projection_faults, (300, 260, 260), 5)
    assert not wrong
    assert sum("if program <" in text and "tl.dot" in text for text in texts) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", [5, 40])
@pytest.mark.parametrize("kind", ["gate", "both stored", "other rows", "chain"])
def test_a_gate_and_its_projection_are_one_kernel(kind: str, rows: int) -> None:
    """Where both read the same rows, and neither waits for the other."""
    wrong, texts = in_interpreter(gate_faults, kind, rows)
    assert not wrong
    assert sum(text.count("tl.dot") == 2 for text in texts) == (kind in ("gate", "both stored"))


def gated(rows: int, columns: int, depth: int) -> Kernel:
    """A gate that multiplies a projection of the same rows."""
    body = f"""loop {{
  v1 = load bf16 in0[{depth}*p0 + r0]
  v2 = load bf16 in1[{depth}*p1 + r0]
  v3 = reduce f32 dot (v1, v2)
  v4 = load bf16 in2[{depth}*p1 + r0]
  v5 = reduce f32 dot (v1, v4)
}}
once {{
  v6 = mul f32 (v3, v5)
  v7 = cast bf16 (v6)
  store bf16 set out0[{columns}*p0 + p1] = v7
}}
"""
    weights = "".join(f"in in{k}: bf16[{columns * depth}] aligned\n" for k in (1, 2))
    return parse(
        f"kernel k on cuda {{\nnumerics fast\naxes p0{{{rows}}} ~ {rows}, p1{{{columns}}} ~ {columns}\n"
        f"raxes r0{{{depth}}} ~ {depth}\nin in0: bf16[{rows * depth}] aligned\n{weights}"
        f"out out0: bf16[{rows * columns}] aligned\n{body}}}"
    )


@pytest.mark.parametrize(("rows", "stages"), [(8, 5), (64, 4)])
def test_a_gate_fits_in_shared_memory(rows: int, stages: int) -> None:
    kernel = gated(rows, 8192, 2048)
    config = configs(kernel, HOPPER)[0]
    assert [config.get(name) for name in ("m", "k", "stages")] == [64, 128, stages]
    assert not may_group(kernel, HOPPER)


@pytest.mark.parametrize("rows, stages", [(8, 4), (32, 4), (64, 3)])
def test_two_of_many_programs_fit_on_a_multiprocessor(rows: int, stages: int) -> None:
    many = configs(kernel_of(Case(rows, 128256, 2048, right_by_rows=False, out="f32")), HOPPER)[0]
    assert (many.get("k"), many.get("stages")) == (128, stages)
    gate = configs(gated(rows, 14336, 4096), HOPPER)[0]
    sides = 2 * gate.get("m") + gate.get("n")
    assert gate.get("k") == 64 and 2 * (sides * 64 * 2 * gate.get("stages") + 2048) <= HOPPER.shared_bytes


@pytest.mark.quick(1)
def test_a_gate_compiles() -> None:
    """Both weights are copied past registers, and no sum is in memory."""
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(gated(64, 8192, 2048), None, HOPPER)
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    made = compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, False)
    assert made.spilled_bytes == 0 and "wgmma" in made.ptx and "ld.global" not in made.ptx


def launched_together(rows: int, columns: tuple[int, ...]) -> Kernel:
    """Linear layers of one depth as parts of a kernel."""
    parts = [kernel_of(Case(rows, n, 2048, right_by_rows=False, out="f32")) for n in columns]
    args = [replace(arg, name=f"{arg.name}_{k}") for k, part in enumerate(parts) for arg in part.args]
    args.sort(key=lambda arg: arg.kind)
    joined = tuple(KernelPart(p, tuple(f"{arg.name}_{k}" for arg in p.args)) for k, p in enumerate(parts))
    return replace(parts[0], axes=(), raxes=(), sections=(), size_hints=(), args=tuple(args), parts=joined)


@pytest.mark.quick(1)
def test_parts_compile_as_one_kernel() -> None:
    """The loop of each copies past registers."""
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    source = emit(launched_together(64, (2048, 512, 512)), None, HOPPER)
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    made = compile_kernel(function, KernelMeta.parse(source.meta), 90, 0, False)
    assert made.spilled_bytes == 0 and "wgmma" in made.ptx and "ld.global" not in made.ptx


@pytest.mark.parametrize("rows", [2, 16, 17, 32, 64])
@pytest.mark.parametrize("columns", [(2048, 512, 512), (2048,) * 3, (8192, 2048), (2048, 4096, 512, 1024)])
def test_tiles_of_all_parts_fit_in_shared_memory(rows: int, columns: tuple[int, ...]) -> None:
    """Beside each other: some versions of Triton do not lay those of different functions over each other."""
    kernel = launched_together(rows, columns)
    source = emit(kernel, None, HOPPER)
    stages, taken = KernelMeta.parse(source.meta).num_stages, 0
    calls = re.findall(r"    \w+_part\d.*?, (\d+), (\d+), (\d+), 1, ", source.text)
    assert {m for m, *_ in calls} == {"64"}, "the tiles of one with all columns"
    assert len(calls) == len(set(columns)), "equal parts are called once"
    for m, n, k in calls:
        taken += stages * (int(m) + int(n)) * int(k) * 2
    assert 2 <= stages <= 5 and taken + 2048 <= HOPPER.shared_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 5, 16, 33, 64])
@pytest.mark.parametrize("dynamic", [False, True])
def test_layers_on_a_device(rows: int, dtype: torch.dtype, dynamic: bool) -> None:
    torch.compiler.reset()
    x = torch.randn(rows, 1024, device="cuda").to(dtype)
    if dynamic and rows > 1:
        torch._dynamo.mark_dynamic(x, 0)
    shapes = ((1536, 1024), (1536, 1024), (1024, 1536))
    gate, up, down = ((torch.randn(*sizes, device="cuda") / 32).to(dtype) for sizes in shapes)

    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        gate, up, down = weights
        inner = torch.nn.functional.silu(x @ gate.t()) * (x @ up.t())
        return inner @ down.t() + x

    with torch.no_grad():
        result = torch.compile(function, backend="polyfuse", options={"strict": True})(x, gate, up, down)
        eager = function(x, gate, up, down).double()
        truth = function(*(t.double() for t in (x, gate, up, down)))
    error, own = ((r.double() - truth).norm() / truth.norm() for r in (result, eager))
    assert error < max(1.5 * own, 1e-3)


@pytest.mark.parametrize(
    "rows, columns, depth, parts",
    [(8, 11008, 4096, 2), (8, 4096, 4096, 8), (64, 11008, 4096, 2), (64, 4096, 4096, 2), (8, 4096, 256, 1)],
)
def test_narrow_weights_are_split_by_groups(rows: int, columns: int, depth: int, parts: int) -> None:
    """Into so many parts that every multiprocessor has asked for enough, and no more than that pays."""
    row, column, group, inside = (
        axis("i0", rows),
        axis("i1", columns),
        axis("k1", depth // 64),
        axis("k0", 64),
    )
    x = load("x", row * depth + group * 64 + inside, DType.bf16)
    w = cast(load("w", column * depth + group * 64 + inside, DType.i8), DType.bf16)
    matmul = Reduction("mm", (row, column), (group, inside), ("sums",), row * columns + column, "dot", (x, w))
    assert streaming_parts(matmul, HOPPER) == parts


@pytest.mark.parametrize(
    "rows, columns, groups, size, parts",
    [
        (8, 11008, 32, 64, 2),
        (8, 4096, 32, 64, 4),
        (16, 11008, 32, 64, 2),
        (64, 11008, 128, 16, 2),
        # 22, 22, 22 and 20 groups, since a step has two
        (8, 4096, 86, 64, 4),
        (64, 4096, 86, 64, 4),
        (8, 4096, 43, 16, 1),
    ],
)
def test_parts_of_weights_of_halves_are_whole_steps(
    rows: int, columns: int, groups: int, size: int, parts: int
) -> None:
    row, column, group, inside, half = (
        axis(name, n) for name, n in (("i0", rows), ("i1", columns), ("k2", groups), ("k1", size), ("k0", 2))
    )
    step = group * size + inside
    x = load("x", row * (groups * size * 2) + step * 2 + half, DType.bf16)
    w = cast(load("w", column * (groups * size) + step, DType.u8), DType.bf16)
    raxes, index = (group, inside, half), row * columns + column
    matmul = Reduction("mm", (row, column), raxes, ("sums",), index, "dot", (x, w))
    assert streaming_parts(matmul, HOPPER) == parts


@pytest.mark.parametrize(
    "groups, size, parts", [(86, 64, 8), (86, 32, 8), (88, 64, 8), (43, 64, 4), (43, 16, 2)]
)
def test_the_last_part_may_have_fewer_groups(groups: int, size: int, parts: int) -> None:
    row, column, group, inside = axis("i0", 8), axis("i1", 4096), axis("k1", groups), axis("k0", size)
    depth, step = groups * size, group * size + inside
    x = load("x", row * depth + step, DType.bf16)
    w = cast(load("w", column * depth + step, DType.u8), DType.bf16)
    matmul = Reduction("mm", (row, column), (group, inside), ("sums",), row * 4096 + column, "dot", (x, w))
    assert streaming_parts(matmul, HOPPER) == parts


@pytest.mark.parametrize(
    "dtype, groups, size, rows",
    [
        (DType.bf16, 1, 4096, (64, 0)),
        (DType.f16, 64, 64, (64, 0)),
        (DType.f16, 64, 24, (0, 0)),
        (DType.f32, 1, 4096, (16, 1)),
        (DType.f32, 64, 64, (0, 0)),
    ],
)
def test_rows_up_to_which_a_narrow_weight_is_read_as_it_is_stored(
    dtype: DType, groups: int, size: int, rows: tuple[int, int]
) -> None:
    row, column, inside = axis("i0", 8), axis("i1", 512), axis("k0", size)
    depth, outer = groups * size, (axis("k1", groups),) if groups > 1 else ()
    step = (outer[0] * size if outer else 0) + inside
    x = load("x", row * depth + step, dtype)
    w = cast(load("w", column * depth + step, DType.i8), dtype)
    matmul = Reduction("mm", (row, column), (*outer, inside), ("sums",), row * 512 + column, "dot", (x, w))
    assert narrow_rows(matmul) == rows
