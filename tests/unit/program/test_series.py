"""Series of launches: where they begin and end, their tables, and their text."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ir_samples import softmax_kernel
from polyfuse.ir.nodes import Buffer, Origin, View
from polyfuse.ir.types import DType, from_torch
from polyfuse.program import find_series, python_text
from polyfuse.program.steps import (
    Allocate,
    BindSymbol,
    ExternStep,
    Free,
    KeepMemory,
    LaunchKernel,
    Loop,
    MakeView,
    Program,
    ProgramInput,
    ProgramKernel,
    Read,
    Ref,
    Return,
    Reuse,
    Series,
    Step,
)
from polyfuse.symbolic import symbol

S0 = symbol("s0")
JOINING = {"one": frozenset({"bfloat16"})}
ORIGIN = (Origin("relu", "aten.relu.default", "x.relu()"),)


@pytest.fixture(autouse=True)
def short_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfuse.program.series.LEAST", 2)


def allocate(name: str, *size: object, dtype: str = "float32") -> Allocate:
    stride = (*size[1:], 1) if len(size) > 1 else (1,)
    return Allocate(name, size, stride, dtype, "cuda:0")  # type: ignore[arg-type]


def program(*steps: Step, backend: str = "one") -> Program:
    kernels = tuple(ProgramKernel(k, softmax_kernel(), backend, ()) for k in ("k0", "k1"))
    inputs = (
        ProgramInput("x", "tensor", (8, S0), (S0, 1), "float32", "cuda:0"),
        ProgramInput("w", "tensor", (8,), (1,), "float32", "cuda:0", static=True),
    )
    return Program("graph", "inference", inputs, (), steps, kernels, device="cuda:0")


STEPS = (
    BindSymbol("s0", Read("size", "x", 1)),
    allocate("a", 8, S0),
    LaunchKernel("k0", ("x", "w", "a", S0), origins=ORIGIN),
    Free(("w",)),
    allocate("b", 8, dtype="bfloat16"),
    LaunchKernel("k1", ("a", "b", S0 * 4, 7)),
    Free(("x",)),
    Reuse("c", "a", (8, S0), (S0, 1), True),
    LaunchKernel("k0", ("b", "b", "c", S0)),
    Free(("b",)),
    allocate("y", 8),
    ExternStep("aten.sum.out", (Ref("c"),), (), ("y",), "out"),
    Free(("c",)),
    Return((Ref("y"),)),
)


def test_a_table() -> None:
    (series,) = find_series(program(*STEPS), JOINING, {})
    assert (series.start, series.end) == (1, 10)
    assert series.inputs == ("x", "w") and series.symbols == ("s0",)
    assert series.results == ("c",) and series.dead == ("w", "x") and series.lost == ()
    # `a` goes on as a result, which an operator sees; `b` is memory; `w` is a parameter, which others hold
    assert series.rows == (
        ("tensor", 2, (8, "s0"), ("s0", 1), "float32"),
        ("launch", "k0", (0, 1, 2, "s0")),
        ("memory", 3, 16),
        ("launch", "k1", (2, 3, "4*s0", "7")),
        ("free", 0),
        ("launch", "k0", (3, 3, 2, "s0")),
        ("free", 3),
    )
    assert series.returns == (2,) and series.slots == 4


def test_its_text() -> None:
    one = program(*STEPS)
    text = python_text(replace(one, series=find_series(one, JOINING, {})))
    assert "def series_0(args):\n    x, w, s0 = args\n    args.clear()\n" in text
    assert "    given = [x, w, s0]; del w, x\n    (c,) = series_0(given)\n" in text
    assert "    k1(a, b, 4*s0, 7)\n" in text and "    del b\n    return (c,)\n" in text
    space: dict[str, object] = {}
    exec(text[text.index("SERIES = (") : text.index("CHECKS = ")], space)
    ((name, inputs, symbols, positions, returns, rows),) = space["SERIES"]  # type: ignore[attr-defined]
    (series,) = find_series(one, JOINING, {})
    assert (name, inputs, symbols, positions) == ("series_0", 2, ("s0",), 4)
    assert (returns, rows) == (series.returns, series.rows)


def test_another_layout_is_a_view() -> None:
    steps = (
        allocate("a", 4, 4),
        LaunchKernel("k0", ("x", "a")),
        Reuse("b", "a", (16,), (1,), False),
        LaunchKernel("k1", ("x", "b")),
    )
    shown = (*steps, Return((Ref("b"),)))
    (series,) = find_series(program(*shown), JOINING, {})
    assert [row[0] for row in series.rows] == ["tensor", "launch", "view", "free", "launch"]
    assert series.rows[2:4] == (("view", 2, 1, (16,), (1,)), ("free", 1))
    hidden = (*steps, Free(("b",)), Return((Ref("x"),)))
    (series,) = find_series(program(*hidden), JOINING, {})
    assert [row[0] for row in series.rows] == ["memory", "launch", "launch", "free"]


def on_host(*steps: Step, loop: Loop | None = None, size: int = 8) -> Program:
    kernels = (ProgramKernel("k0", softmax_kernel(), "one", ()),)
    inputs = (
        ProgramInput("x", "tensor", (size,), (1,), "float32", "cpu"),
        ProgramInput("w", "tensor", (8,), (1,), "float32", "cpu", static=True),
    )
    return Program("graph", "inference", inputs, (), steps, kernels, loop=loop)


HOST_STEPS = (
    Allocate("pool", (4096,), (1,), "uint8", "cpu", cached=True),
    MakeView("a", View("pool", (8,), (1,), 16, DType.f32)),
    LaunchKernel("k0", ("x", "w", "a")),
    Free(("w",)),
    Allocate("b", (8,), (1,), "float32", "cpu"),
    LaunchKernel("k0", ("a", "b", 3)),
    Free(("a", "b")),
    KeepMemory("pool"),
    Return((Ref("x"),)),
)


def test_a_table_on_the_host() -> None:
    (series,) = find_series(on_host(*HOST_STEPS), JOINING, {})
    assert (series.start, series.end) == (1, 7) and series.inputs == ("pool", "x", "w")
    assert series.rows == (
        ("part", 3, 0, 16, (8,), (1,), "float32"),
        ("launch", "k0", (1, 2, 3)),
        ("memory", 4, 32),
        ("launch", "k0", (3, 4, "3")),
        ("free", 3),
        ("free", 4),
    )
    text = python_text(replace(on_host(*HOST_STEPS), series=(series,)))
    assert "    a = reinterpret_tensor(pool_as_float32, (8,), (1,), 16)" in text
    assert "    given = [pool, x, w]; del w\n    series_0(given)\n" in text


def test_what_is_no_series_on_the_host() -> None:
    varying = (*HOST_STEPS[:5], LaunchKernel("k0", ("a", "b", S0)), *HOST_STEPS[6:])
    assert find_series(on_host(*varying), JOINING, {}) == ()
    # what dies in between would be held until the end, which is no matter where it is small
    dying = (*HOST_STEPS[:3], Free(("x",)), *HOST_STEPS[4:-1], Return((Ref("pool"),)))
    assert find_series(on_host(*dying, size=1 << 21), JOINING, {}) == ()
    (series,) = find_series(on_host(*dying), JOINING, {})
    assert series.dead == ("x",)
    loop = Loop(1, 3, 2, (), (), (), ())
    assert find_series(on_host(*HOST_STEPS, loop=loop), JOINING, {}) == ()


def test_what_is_no_series() -> None:
    one = program(*STEPS)
    assert find_series(one, {"other": frozenset()}, {}) == ()
    assert find_series(replace(one, device=""), JOINING, {}) == ()
    assert find_series(replace(one, profile=True), JOINING, {}) == ()
    # one launch, or launches on another device
    alone = (allocate("a", 8), LaunchKernel("k0", ("x", "a")), Return((Ref("a"),)))
    assert find_series(program(*alone), JOINING, {}) == ()
    away = (LaunchKernel("k0", ("x",), "cuda:1"), LaunchKernel("k1", ("x",), "cuda:1"), Return(()))
    assert find_series(program(*away), JOINING, {}) == ()


def test_short_ones_stay_single_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfuse.program.series.LEAST", 3)
    assert find_series(program(*STEPS), JOINING, {}) != ()
    monkeypatch.setattr("polyfuse.program.series.LEAST", 4)
    assert find_series(program(*STEPS), JOINING, {}) == ()


def buffer(name: str, *size: int, dtype: str = "bfloat16") -> Buffer:
    stride = tuple(math.prod(size[i + 1 :]) for i in range(len(size)))
    return Buffer(name, from_torch(getattr(torch, dtype)), "cuda:0", size, stride, dtype)


BUFFERS = {
    b.name: b
    for b in (
        buffer("x", 4, 2, 16),
        buffer("w", 32, 16),
        buffer("bias", 32),
        buffer("a", 8, 32),
        buffer("b", 8, 16),
        buffer("c", 8, 32, dtype="float32"),
    )
}
ROWS_OF_X, TRANSPOSED_W = View("x", (8, 16), (16, 1)), View("w", (16, 32), (1, 16))


def with_matmuls(*steps: Step, dtypes: frozenset[str] = JOINING["one"]) -> tuple[Series, ...]:
    return find_series(program(*steps), {"one": dtypes}, BUFFERS)


def matmul(op: str, args: tuple[object, ...], out: str, **kwargs: object) -> ExternStep:
    return ExternStep(f"aten.{op}.out", args, tuple(kwargs.items()), (out,), "out")


LAYER = (
    allocate("a", 8, 32, dtype="bfloat16"),
    matmul("addmm", (Ref("bias"), ROWS_OF_X, TRANSPOSED_W), "a"),
    Free(("bias",)),
    LaunchKernel("k0", ("a", "a")),
    allocate("b", 8, 16, dtype="bfloat16"),
    matmul("mm", (Ref("a"), Ref("w")), "b"),
    Return((Ref("b"),)),
)


def test_a_librarys_matmuls_are_rows() -> None:
    (series,) = with_matmuls(*LAYER)
    assert (series.start, series.end) == (0, 6) and series.inputs == ("bias", "x", "w")
    sizes, back, hidden = (1, 8, 32, 16), (1, 8, 16, 32), (3, 0, False, 32, 0)
    # rows of 16 and of 32 numbers; a transposed weight has columns of 16
    assert series.rows == (
        ("memory", 3, 512),
        ("matmul", "bfloat16", sizes, "", hidden, (1, 0, False, 16, 0), (2, 0, True, 16, 0), (0, 0)),
        ("free", 0),
        ("launch", "k0", (3, 3)),
        ("tensor", 4, (8, 16), (16, 1), "bfloat16"),
        ("matmul", "bfloat16", back, "", (4, 0, False, 16, 0), hidden, (2, 0, False, 16, 0), None),
    )
    # without a library they end a series, as other operators do
    assert with_matmuls(*LAYER, dtypes=frozenset()) == ()


def test_an_activation_and_batches() -> None:
    activated = matmul("_addmm_activation", (Ref("bias"), ROWS_OF_X, TRANSPOSED_W), "a", use_gelu=True)
    (series,) = with_matmuls(LAYER[0], activated, *LAYER[3:])
    assert [row[3] for row in series.rows if row[0] == "matmul"] == ["gelu", ""]
    left, right = View("x", (4, 2, 8), (32, 16, 1), 8), View("x", (4, 8, 2), (32, 1, 16))
    pairs = replace(BUFFERS["a"], name="p", size=(4, 2, 2), stride=(4, 2, 1))
    steps = (
        allocate("p", 4, 2, 2, dtype="bfloat16"),
        matmul("bmm", (left, right), "p"),
        matmul("bmm", (left, right), "p"),
        LaunchKernel("k0", ("p", "p")),
        Return((Ref("p"),)),
    )
    (series,) = find_series(program(*steps), JOINING, BUFFERS | {"p": pairs})
    row = series.rows[1]
    assert row[2] == (4, 2, 2, 8) and row[4] == (1, 0, False, 2, 4)
    assert row[5:] == ((0, 16, False, 16, 32), (0, 0, True, 16, 32), None)


@pytest.mark.parametrize(
    "step",
    [
        matmul("mm", (ROWS_OF_X, TRANSPOSED_W), "c"),  # two types
        matmul("mm", (View("x", (8, 8), (16, 2)), View("w", (8, 32), (1, 16))), "a"),  # numbers apart
        matmul("mm", (View("x", (7, 16), (16, 1), 4), TRANSPOSED_W), "a"),  # an address between
        matmul("addmm", (Ref("a"), ROWS_OF_X, TRANSPOSED_W), "a"),  # a matrix is added
        matmul("addmm", (Ref("bias"), ROWS_OF_X, TRANSPOSED_W), "a", beta=2),
        matmul("baddbmm", (Ref("bias"), ROWS_OF_X, TRANSPOSED_W), "a"),
        ExternStep("aten.mm.default", (ROWS_OF_X, TRANSPOSED_W), (), ("a",), "single"),
        matmul("mm", (View("x", (S0, 16), (16, 1)), TRANSPOSED_W), "a"),  # a size that varies
    ],
)
def test_matmuls_that_torch_calls(step: ExternStep) -> None:
    assert with_matmuls(LAYER[0], step, *LAYER[3:5], Return((Ref("a"),))) == ()


def test_views_that_matmuls_share_are_tensors_where_others_see_them() -> None:
    shared = (
        MakeView("v", ROWS_OF_X),
        LAYER[0],
        matmul("addmm", (Ref("bias"), Ref("v"), TRANSPOSED_W), "a"),
        matmul("addmm", (Ref("bias"), Ref("v"), TRANSPOSED_W), "a"),
        LaunchKernel("k0", ("a", "a")),
    )
    (series,) = with_matmuls(*shared, Free(("v",)), Return((Ref("a"),)))
    assert [row[0] for row in series.rows] == ["tensor", "matmul", "matmul", "launch"]
    (series,) = with_matmuls(*shared, Return((Ref("a"), Ref("v"))))
    assert series.rows[0] == ("part", 3, 0, 0, (8, 16), (16, 1), "bfloat16") and set(series.results) == {
        "v",
        "a",
    }
    assert [row[5] for row in series.rows if row[0] == "matmul"] == [(3, 0, False, 16, 0)] * 2


def test_memory_for_checks_begins_as_zeros_and_is_no_step_of_a_series() -> None:
    status = replace(allocate("s", 1, dtype="int64"), status=True)
    steps = (LaunchKernel("k0", ("x",)), status, LaunchKernel("k1", ("s",)), Return((Ref("s"),)))
    assert find_series(program(*steps), JOINING, {}) == ()
