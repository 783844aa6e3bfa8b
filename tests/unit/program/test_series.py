"""Series of launches: where they begin and end, their tables, and their text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ir_samples import softmax_kernel
from polyfuse.ir.nodes import Origin, View
from polyfuse.ir.types import DType
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
    Step,
)
from polyfuse.symbolic import symbol

S0 = symbol("s0")
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
    (series,) = find_series(program(*STEPS), {"one"})
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
    text = python_text(replace(one, series=find_series(one, {"one"})))
    assert "def series_0(args):\n    x, w, s0 = args\n    args.clear()\n" in text
    assert "    given = [x, w, s0]; del w, x\n    (c,) = series_0(given)\n" in text
    assert "    k1(a, b, 4*s0, 7)\n" in text and "    del b\n    return (c,)\n" in text
    space: dict[str, object] = {}
    exec(text[text.index("SERIES = (") : text.index("CHECKS = ")], space)
    ((name, inputs, symbols, positions, returns, rows),) = space["SERIES"]  # type: ignore[attr-defined]
    (series,) = find_series(one, {"one"})
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
    (series,) = find_series(program(*shown), {"one"})
    assert [row[0] for row in series.rows] == ["tensor", "launch", "view", "free", "launch"]
    assert series.rows[2:4] == (("view", 2, 1, (16,), (1,)), ("free", 1))
    hidden = (*steps, Free(("b",)), Return((Ref("x"),)))
    (series,) = find_series(program(*hidden), {"one"})
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
    (series,) = find_series(on_host(*HOST_STEPS), {"one"})
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
    assert find_series(on_host(*varying), {"one"}) == ()
    # what dies in between would be held until the end, which is no matter where it is small
    dying = (*HOST_STEPS[:3], Free(("x",)), *HOST_STEPS[4:-1], Return((Ref("pool"),)))
    assert find_series(on_host(*dying, size=1 << 21), {"one"}) == ()
    (series,) = find_series(on_host(*dying), {"one"})
    assert series.dead == ("x",)
    loop = Loop(1, 3, 2, (), (), (), ())
    assert find_series(on_host(*HOST_STEPS, loop=loop), {"one"}) == ()


def test_what_is_no_series() -> None:
    one = program(*STEPS)
    assert find_series(one, {"other"}) == ()
    assert find_series(replace(one, device=""), {"one"}) == ()
    assert find_series(replace(one, profile=True), {"one"}) == ()
    # one launch, or launches on another device
    alone = (allocate("a", 8), LaunchKernel("k0", ("x", "a")), Return((Ref("a"),)))
    assert find_series(program(*alone), {"one"}) == ()
    away = (LaunchKernel("k0", ("x",), "cuda:1"), LaunchKernel("k1", ("x",), "cuda:1"), Return(()))
    assert find_series(program(*away), {"one"}) == ()


def test_short_ones_stay_single_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyfuse.program.series.LEAST", 3)
    assert find_series(program(*STEPS), {"one"}) != ()
    monkeypatch.setattr("polyfuse.program.series.LEAST", 4)
    assert find_series(program(*STEPS), {"one"}) == ()
