"""Intermediate tensors in one block: no overlap while they live, aligned, and equal results."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.compiler import stages
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.ir.nodes import Buffer
from polyfuse.ir.types import DType
from polyfuse.program import memory_plan
from polyfuse.program.memory import Lifetime, storage_bytes
from polyfuse.program.pools import ALIGNMENT, plan_pools
from polyfuse.program.steps import Allocate, Free, MakeView
from polyfuse.program.text import python_text
from polyfuse.runtime import workspace
from polyfuse.schedule.kernels.lifetimes import storage_key
from polyfuse.symbolic import example_value, free_symbols, symbol
from program_builder import Builder, add, add_one


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    reset_reports()
    yield


def buffer(name: str, count: int, dtype: DType = DType.f32, device: str = "cpu") -> Buffer:
    return Buffer(name, dtype, device, (count,), (1,), str(dtype.torch).removeprefix("torch."))


def lifetime(item: Buffer, first: int, last: int | None, takes: str = "", **facts: bool) -> Lifetime:
    known = {"poolable": True, "allocated": True, **facts}
    return Lifetime(item.name, storage_key(item), storage_bytes(item, {}), first, last, takes=takes, **known)


HINTS = {"s0": 8, "s1": 100}


def assigned(*items: tuple[Buffer, Lifetime]):
    return plan_pools([life for _, life in items], {item.name: item for item, _ in items}, HINTS)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@pytest.mark.parametrize("seed", range(20))
def test_what_lives_at_once_does_not_overlap(seed: int) -> None:
    random.seed(seed)
    items = []
    for i in range(30):
        item = buffer(f"b{i}", random.randint(1, 400), random.choice([DType.f32, DType.i8, DType.f64]))
        first = random.randrange(40)
        items.append((item, lifetime(item, first, first + random.randrange(12))))
    placements = assigned(*items)
    (pool,) = {block.pool for block in placements.values()}
    assert len(placements) == 30
    ranges = [(life, placements[item.name].offset, storage_bytes(item, {})) for item, life in items]
    for k, (life, start, size) in enumerate(ranges):
        assert start % ALIGNMENT == 0 and start + size <= pool.size
        for other, begin, length in ranges[:k]:
            together = life.first <= (other.last or 0) and other.first <= (life.last or 0)
            assert not together or start + size <= begin or begin + length <= start
    live = [
        sum(
            -(-size // ALIGNMENT) * ALIGNMENT
            for life, _, size in ranges
            if life.first <= t <= (life.last or 0)
        )
        for t in range(60)
    ]
    assert max(live) <= pool.size <= sum(_rounded(size) for _, _, size in ranges)


def test_sizes_need_not_be_equal_for_memory_to_be_used_again() -> None:
    large, small, late = buffer("large", 256), buffer("small", 16), buffer("late", 100)
    placements = assigned(
        (large, lifetime(large, 0, 1)), (small, lifetime(small, 2, 3)), (late, lifetime(late, 2, 4))
    )
    assert placements["large"].pool.size == 1024
    assert (placements["large"].pool.first, placements["large"].pool.last) == (0, 4)
    assert {name: block.offset for name, block in placements.items()} == {"large": 0, "late": 0, "small": 448}


def test_what_is_written_over_another_shares_its_memory() -> None:
    a, b, c = buffer("a", 16), buffer("b", 16), buffer("c", 16)
    placements = assigned((a, lifetime(a, 0, 1)), (b, lifetime(b, 1, 2, takes="a")), (c, lifetime(c, 0, 2)))
    assert placements["a"] == placements["b"] != placements["c"]


@pytest.mark.parametrize(
    "facts", [{"poolable": False}, {"allocated": False}, {"last": None}], ids=["shared", "made", "result"]
)
def test_what_others_know_of_stays_out_with_what_is_written_over_it(facts) -> None:
    a, b, c, d = (buffer(name, 16) for name in "abcd")
    last = facts.pop("last", 2)
    placements = assigned(
        (a, lifetime(a, 0, 1)),
        (b, lifetime(b, 1, last, takes="a", **facts)),
        (c, lifetime(c, 0, 2)),
        (d, lifetime(d, 0, 2)),
    )
    assert set(placements) == {"c", "d"}


def test_devices_have_pools_of_their_own_and_a_single_buffer_has_none() -> None:
    items = [buffer(f"b{i}", 8, device=f"cuda:{i % 2}") for i in range(4)] + [buffer("alone", 8)]
    placements = assigned(*((item, lifetime(item, 0, 1)) for item in items))
    assert set(placements) == {"b0", "b1", "b2", "b3"}
    assert placements["b0"].pool == placements["b2"].pool != placements["b1"].pool
    assert placements["b0"].pool.device == "cuda:0"


def _symbolic(seed: int):
    """Buffers of which some have sizes of two symbols, with their lifetimes."""
    random.seed(seed)
    s0, s1 = symbol("s0"), symbol("s1")
    for i in range(24):
        count = random.choice([7, 40, s0, s1, s0 * 3, s0 * s1, s0 + s1, s0 // 2 + 1])
        dtype = random.choice([DType.f32, DType.i8, DType.f64])
        item = Buffer(f"b{i}", dtype, "cpu", (count,), (1,), str(dtype.torch).removeprefix("torch."))
        first = random.randrange(30)
        life = Lifetime(item.name, storage_key(item), 64, first, first + random.randrange(9), True, True)
        yield item, life


@pytest.mark.parametrize("seed", range(10))
def test_sizes_of_symbols_never_overlap_whatever_they_are(seed: int) -> None:
    items = list(_symbolic(seed))
    placements = assigned(*items)
    assert len(placements) == 24
    (pool,) = {block.pool for block in placements.values()}
    most = 0
    for values in (HINTS, {"s0": 1, "s1": 1}, {"s0": 1000, "s1": 3}, {"s0": 5, "s1": 0}):
        extent = example_value(pool.extent, values)
        ranges = [
            (life, example_value(placements[item.name].offset, values), storage_bytes(item, values))
            for item, life in items
        ]
        for k, (life, start, size) in enumerate(ranges):
            assert start % ALIGNMENT == 0 and start + size <= extent
            for other, begin, length in ranges[:k]:
                together = life.first <= (other.last or 0) and other.first <= (life.last or 0)
                assert not together or start + size <= begin or begin + length <= start
        most = max(most, sum(_rounded(size) for _, _, size in ranges) / extent)
    assert pool.size == example_value(pool.extent, HINTS)
    assert most > 1.2, "memory is used again"


def test_sizes_that_are_not_known_and_odd_types_stay_out() -> None:
    s0 = symbol("u0")
    odd = Buffer("odd", None, "cpu", (4,), (1,), "complex64")
    unknown = Buffer("unknown", DType.f32, "cpu", (s0,), (1,), "float32")
    empty = buffer("empty", 0)
    a, b = buffer("a", 4), buffer("b", 4)
    items = [
        (item, Lifetime(item.name, storage_key(item), 64, 0, 1, True, True))
        for item in (odd, unknown, empty, a, b)
    ]
    assert set(assigned(*items)) == {"a", "b"}


def steps_of(b: Builder):
    """A chain of three kernels on sizes that differ, then a call."""
    b.tensor("x", (4, 6))
    b.launch(add_one, [b.buffer("a", (4, 6))], ["x"])
    b.launch(lambda o, i: o.copy_(i[:2]), [b.buffer("part", (2, 6), dtype=DType.f64)], ["a"])
    b.launch(lambda o, i: o.copy_(i.t()), [b.buffer("transposed", (6, 2), (1, 6))], ["part"])
    b.launch(
        add,
        [b.buffer("more", (6, 2), (1, 6))],
        ["transposed", "transposed"],
        inplace=[("more", "transposed")],
    )
    b.call("aten.mm.default", [b.view("more", (2, 6), (6, 1)), b.view("more")], [b.buffer("p", (2, 2))])
    b.output("p")
    return b


def test_a_program_allocates_once_and_gives_the_same() -> None:
    b = steps_of(Builder())
    steps = b.program(memory_pools=True).steps
    allocations = [step for step in steps if isinstance(step, Allocate)]
    assert [(step.dtype, step.size) for step in allocations] == [("uint8", (256,))]
    carved = {step.name for step in steps if isinstance(step, MakeView)}
    assert carved >= {"a", "part", "transposed", "more"}
    frees = [name for step in steps if isinstance(step, Free) for name in step.names]
    assert sorted(frees) == sorted(set(frees))
    x = torch.randn(4, 6)
    expected = b.module()([x])
    torch.testing.assert_close(b.module(memory_pools=True)([x]), expected)
    plans = [memory_plan(b.schedule(), Settings(memory_pools=on)) for on in (False, True)]
    assert plans[1].allocated == 256 and not plans[1].takes


def test_carved_tensors_have_the_planned_addresses() -> None:
    b = Builder()
    seen = []
    b.tensor("x", (5,))

    def look(o, i):
        seen.append((o.data_ptr(), o.untyped_storage().data_ptr(), o.stride(), o.dtype))
        add_one(o, i)

    for name, before in (("a", "x"), ("b", "a"), ("c", "b"), ("d", "c")):
        b.launch(look, [b.buffer(name, (5,))], [before])
    b.output("d")
    module = b.module(memory_pools=True)
    module([torch.randn(5)])
    bases = {base for _, base, _, _ in seen[:3]}
    assert len(bases) == 1
    (base,) = bases
    assert [address - base for address, _, _, _ in seen[:3]] == [0, 64, 0]
    assert seen[3][1] != base, "a result is no part of the pool"


def test_a_pool_is_released_after_its_last_buffer() -> None:
    b = Builder()
    b.tensor("x", (4,))
    for name, before in (("a", "x"), ("b", "a"), ("c", "b")):
        b.launch(add_one, [b.buffer(name, (4,))], [before])
    b.call("aten.sin.default", [b.view("c")], [b.buffer("d", (4,))])
    b.call("aten.cos.default", [b.view("d")], [b.buffer("e", (4,))])
    b.output("e")
    text = b.text(memory_pools=True)
    lines = text.splitlines()
    release = next(n for n, line in enumerate(lines) if "del " in line and "pool_" in line)
    assert release < next(
        n for n, line in enumerate(lines) if "cos" in line and "=" in line and "e =" in line
    )


def model(x, y):
    a = torch.softmax(x @ y, -1)
    b = torch.relu(a @ y.t()) + x
    return (b @ y).cumsum(0).sum(-1), b.sum()


def test_models_agree_and_training_keeps_to_handing_on() -> None:
    x, y = torch.randn(16, 8), torch.randn(8, 8)
    options = {"backends": ["interpreter"], "memory_pools": True, "strict": True}
    with torch.no_grad():
        compiled = torch.compile(model, backend="polyfuse", options=options, dynamic=False)
        torch.testing.assert_close(compiled(x, y), model(x, y))
    torch._dynamo.reset()
    x.requires_grad_()
    expected = torch.autograd.grad(model(x, y)[1], x)
    compiled = torch.compile(model, backend="polyfuse", options=options, dynamic=False)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, y)[1], x), expected)
    assert [report.eager for report in last_reports()] == [""] * len(last_reports())


@pytest.mark.slow
def test_graphs_of_sizes_that_vary_have_pools_too(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []
    plan = stages.make_program
    monkeypatch.setattr(stages, "make_program", lambda *a, **k: plans.append(plan(*a, **k)) or plans[-1])
    options = {"backends": ["interpreter"], "memory_pools": True, "strict": True, "cache": False}
    compiled = torch.compile(model, backend="polyfuse", options=options, dynamic=True)
    with torch.no_grad():
        for rows in (16, 5, 64):
            x, y = torch.randn(rows, 8, dtype=torch.float64), torch.randn(8, 8, dtype=torch.float64)
            torch.testing.assert_close(compiled(x, y), model(x, y))
    (program,) = plans
    (pool,) = [s for s in program.steps if isinstance(s, Allocate) and s.dtype == "uint8"]
    assert free_symbols(pool.size[0])
    carved = [s for s in program.steps if isinstance(s, MakeView) and s.view.buffer == pool.name]
    assert len(carved) > 1


def test_sizes_that_data_decide_have_no_pool() -> None:
    options = {"backends": ["interpreter"], "memory_pools": True}

    def selected(x):
        y = torch.relu(x[x > 0] * 2)
        return (y.softmax(0) + y.cumsum(0)).sum()

    with torch.no_grad(), torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(selected, backend="polyfuse", options=options)
        for count in (30, 50):
            x = torch.randn(count)
            torch.testing.assert_close(compiled(x), selected(x))


def _deep(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.softmax(x @ w, 1)
    second = torch.softmax(first @ w, 1)
    return second @ w, first.sum(1)


def test_large_intermediates_keep_their_memory_from_call_to_call() -> None:
    workspace.forget_memory()
    call = torch.compile(_deep, backend="polyfuse", options={"strict": True, "gemm": "library"})
    x, y, w = torch.randn(1100, 1000), torch.randn(1100, 1000), torch.randn(1000, 1000) / 30
    first = call(x, w)
    (block,) = workspace._BLOCKS
    with torch.inference_mode():
        second = call(y, w)
    torch.testing.assert_close(first, _deep(x, w))  # results lie elsewhere
    torch.testing.assert_close(second, _deep(y, w))
    assert [block] == workspace._BLOCKS and block.numel() >= 2 * x.nbytes
    assert block.data_ptr() % workspace.LARGE_PAGE == 0 or not workspace.HAS_LARGE_PAGES
    assert workspace.cached_memory(100) is block and not workspace._BLOCKS
    assert call(x, w)[0].data_ptr() != block.data_ptr()
    workspace.keep_memory(block)
    assert len(workspace._BLOCKS) == 2, "a call that finds no block makes one"
    assert workspace.cached_memory(1 << 24).numel() == 1 << 24, "a block that is too small is released"
    workspace.forget_memory()


def _both_types(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = (x @ w).double()
    narrow = torch.softmax(x @ w, 1)
    return narrow @ w, (wide @ w.double()).sum(1)


def test_a_block_that_stays_is_seen_once_as_each_type(monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.forget_memory()
    plan, seen = stages.make_program, []
    monkeypatch.setattr(stages, "make_program", lambda *a, **k: seen.append(plan(*a, **k)) or seen[-1])
    options = {"strict": True, "gemm": "library", "graph_cache": False}
    call = torch.compile(_both_types, backend="polyfuse", options=options)
    x, w = torch.randn(1100, 1000), torch.randn(1000, 1000) / 30
    for _ in range(2):
        torch.testing.assert_close(call(x, w), _both_types(x, w))
    text = python_text(seen[-1])
    for dtype in ("float32", "float64"):
        assert text.count(f".view({dtype})") == 1 and text.count(f"_as_{dtype}, (") >= 1
    assert text.index("keep_memory(pool") < text.rindex("_as_float32")  # let go of with the block
    workspace.forget_memory()


def test_memory_is_released_where_that_is_wanted() -> None:
    workspace.forget_memory()
    call = torch.compile(_deep, backend="polyfuse", options={"gemm": "library", "keep_memory": False})
    call(torch.randn(1100, 1000), torch.randn(1000, 1000))
    assert not workspace._BLOCKS


@pytest.mark.parametrize("classes", [True, False])
def test_memory_of_sizes_that_vary_stays_from_call_to_call(classes: bool) -> None:
    workspace.forget_memory()
    torch._dynamo.reset()
    options = {"strict": True, "gemm": "library", "size_classes": classes, "graph_cache": False}
    call = torch.compile(_deep, backend="polyfuse", options=options)
    w = torch.randn(1000, 1000) / 30
    first = torch.randn(1500, 1000)
    torch._dynamo.mark_dynamic(first, 0)
    largest = 0
    for rows in (1500, 2100, 1024, 600, 7, 5000, 130):
        x = first if rows == 1500 else torch.randn(rows, 1000)
        torch.testing.assert_close(call(x, w), _deep(x, w))
        largest = max(largest, *(block.numel() for block in workspace._BLOCKS))
        # two of the intermediate results are alive at once
        assert len(workspace._BLOCKS) == 1 and 2 * x.nbytes <= largest <= 2 * 5000 * 4096
    assert largest < 3 * 5000 * 4000
    workspace.forget_memory()


def _selected(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    before = torch.softmax(x @ w, 1)
    first = torch.softmax(before[x[:, 0] > 0] @ w, 1)
    return torch.softmax(first @ w, 1) @ w, before.sum(1)


@pytest.mark.parametrize("pools", [True, False])
def test_memory_of_sizes_that_data_decide_is_taken_when_they_are_known(pools: bool) -> None:
    workspace.forget_memory()
    torch._dynamo.reset()
    options = {"gemm": "library", "memory_pools": pools, "graph_cache": False}
    call = torch.compile(_selected, backend="polyfuse", options=options)
    w = torch.randn(1000, 1000) / 30
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for rows in (3000, 3000, 40):
            x = torch.randn(rows, 1000)
            torch.testing.assert_close(call(x, w), _selected(x, w))
    assert last_reports()[-1].kernels
    workspace.forget_memory()
