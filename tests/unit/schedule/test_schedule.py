"""Scheduling of small hand-made graphs: what fuses, why not, and that the kernels compute what the nodes
say.
"""

from __future__ import annotations

import pytest
import torch

from polyfuse.ir.expr import apply, const, load
from polyfuse.ir.kernel import Alias
from polyfuse.ir.nodes import Scatter
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.schedule import Launch
from polyfuse.schedule.kernels.aliasing import without_refused
from polyfuse.symbolic import IndexLike, axis, axis_size, symbol
from schedule_builder import Maker, axes, run, vectors


def softmax_graph(rows: IndexLike, columns: IndexLike) -> Maker:
    m = Maker()
    m.buffer("x", rows, columns, kind="input")
    m.buffer("high", rows)
    m.buffer("total", rows)
    m.buffer("y", rows, columns)
    (i,), (r,) = axes(rows), axes(columns, prefix="r")
    m.reduce("high", (i,), (r,), "max", m.load("x", i, r))
    shifted = apply("exp", apply("sub", m.load("x", i, r), m.load("high", i)))
    m.reduce("total", (i,), (r,), "sum", shifted)
    i, j = axes(rows, columns)
    shifted = apply("exp", apply("sub", m.load("x", i, j), m.load("high", i)))
    m.pointwise("y", (i, j), apply("div", shifted, m.load("total", i)))
    return m


def test_softmax_is_one_kernel_that_computes_exp_once() -> None:
    m = softmax_graph(37, 50)
    schedule = m.schedule("y")
    (step,) = schedule.steps
    assert isinstance(step, Launch)
    assert schedule.removed == ("high", "total")
    assert [s.looped for s in step.kernel.sections].count(True) == 3
    exps = [stmt for s in step.kernel.sections for stmt in s.body if stmt.op == "exp"]
    assert len(exps) == 1, "the second loop keeps its row for the third"
    x = torch.randn(37, 50)
    torch.testing.assert_close(run(schedule, {"x": x})["y"], x.softmax(-1))


def test_softmax_with_unknown_sizes() -> None:
    s0, s1 = symbol("s0", 2), symbol("s1", 2)
    m = softmax_graph(s0, s1)
    m.hints.update(s0=37, s1=50)
    schedule = m.schedule("y")
    assert len(schedule.steps) == 1
    x = torch.randn(5, 9)
    torch.testing.assert_close(run(schedule, {"x": x}, {"s0": 5, "s1": 9})["y"], x.softmax(-1))


def test_flat_and_shaped_pointwise_share_a_kernel() -> None:
    m = Maker()
    m.buffer("x", 4, 6, 8, kind="input")
    m.buffer("a", 24, 8)
    m.buffer("b", 4, 6, 8)
    (i, j) = axes(24, 8)
    m.pointwise("a", (i, j), apply("exp", load("x", i * 8 + j, DType.f32)))
    k = axes(4, 6, 8)
    m.pointwise("b", k, apply("add", load("a", k[0] * 48 + k[1] * 8 + k[2], DType.f32), m.load("x", *k)))
    schedule = m.schedule("a", "b")
    (step,) = schedule.steps
    assert len(step.kernel.axes) == 1 and axis_size(step.kernel.axes[0]) == 192
    x = torch.randn(4, 6, 8)
    out = run(schedule, {"x": x})
    torch.testing.assert_close(out["b"], x.exp() + x)


def test_a_transposed_consumer_fuses_in_its_producers_order() -> None:
    m = Maker()
    m.buffer("x", 16, 24, kind="input")
    m.buffer("a", 16, 24)
    m.buffer("b", 24, 16)
    i, j = axes(16, 24)
    m.pointwise("a", (i, j), apply("exp", m.load("x", i, j)))
    i, j = axes(24, 16)
    m.pointwise("b", (i, j), apply("neg", m.load("a", j, i)))
    schedule = m.schedule("a", "b")
    assert len(schedule.steps) == 1
    x = torch.randn(16, 24)
    out = run(schedule, {"x": x})
    torch.testing.assert_close(out["b"], -x.exp().t())


def test_a_shifted_read_is_refused_with_its_reason() -> None:
    m = Maker()
    m.buffer("x", 64, kind="input")
    m.buffer("a", 64)
    m.buffer("b", 63)
    (i,) = axes(64)
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    (i,) = axes(63)
    m.pointwise("b", (i,), m.load("a", i + 1))
    schedule = m.schedule("b")
    assert len(schedule.steps) == 2
    assert [d.reason for d in schedule.decisions if d.kind == "refuse"] == [
        "their iteration spaces have different extents (a: one starts at element 0, the other at 1)"
    ]


def test_column_sum_and_row_sum_do_not_fuse_but_agree() -> None:
    m = Maker()
    m.buffer("x", 20, 30, kind="input")
    m.buffer("rows", 20)
    m.buffer("columns", 30)
    (i,), (r,) = axes(20), axes(30, prefix="r")
    m.reduce("rows", (i,), (r,), "sum", m.load("x", i, r))
    (i,), (r,) = axes(30), axes(20, prefix="r")
    m.reduce("columns", (i,), (r,), "sum", m.load("x", r, i))
    schedule = m.schedule("rows", "columns")
    x = torch.randn(20, 30)
    out = run(schedule, {"x": x})
    torch.testing.assert_close(out["rows"], x.sum(1))
    torch.testing.assert_close(out["columns"], x.sum(0))


def test_sibling_reductions_over_one_input_share_a_kernel() -> None:
    m = Maker()
    m.buffer("x", 20, 30, kind="input")
    m.buffer("a", 20)
    m.buffer("b", 20)
    (i,), (r,) = axes(20), axes(30, prefix="r")
    m.reduce("a", (i,), (r,), "sum", m.load("x", i, r))
    m.reduce("b", (i,), (r,), "max", m.load("x", i, r))
    schedule = m.schedule("a", "b")
    (step,) = schedule.steps
    assert len(step.kernel.sections) == 2 and step.kernel.sections[0].looped
    x = torch.randn(20, 30)
    out = run(schedule, {"x": x})
    torch.testing.assert_close(out["a"], x.sum(1))
    torch.testing.assert_close(out["b"], x.amax(1))


def test_dead_nodes_go_and_effects_stay() -> None:
    m, i = vectors(8, "x", "dead y")
    m.pointwise("dead", (i,), apply("exp", m.load("x", i)))
    m.pointwise("y", (i,), apply("neg", m.load("x", i)))
    m.pointwise("x", (i,), apply("add", m.load("x", i), const(1.0, DType.f32)))
    schedule = m.schedule("y")
    assert [d.first for d in schedule.decisions if d.kind == "remove"] == ["n0"]
    x = torch.randn(8)
    before = x.clone()
    out = run(schedule, {"x": x})
    torch.testing.assert_close(out["y"], -before)
    torch.testing.assert_close(x, before + 1)


def test_a_reader_of_a_scattered_buffer_waits_for_all_of_it() -> None:
    m = Maker()
    m.buffer("index", 12, dtype=DType.i64, kind="input")
    m.buffer("x", 12, kind="input")
    m.buffer("bins", 5)
    m.buffer("y", 5)
    (i,) = axes(5)
    m.pointwise("bins", (i,), const(0.0, DType.f32))
    (i,) = axes(12)
    m.nodes.append(
        Scatter("s", (i,), (), "bins", axis("@0", 5), (m.load("index", i),), m.load("x", i), "add")
    )
    (i,) = axes(5)
    m.pointwise("y", (i,), apply("neg", m.load("bins", i)))
    schedule = m.schedule("y")
    assert len(schedule.steps) == 3
    index, x = torch.randint(0, 5, (12,)), torch.randn(12)
    expected = -torch.zeros(5).index_add_(0, index, x)
    torch.testing.assert_close(run(schedule, {"index": index, "x": x})["y"], expected)


def test_a_dying_input_lends_its_storage() -> None:
    m, i = vectors(8, "x", "a y")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("y", (i,), apply("neg", m.load("a", i)))
    schedule = m.schedule("y", fusion=False)
    assert schedule.steps[1].inplace == (("y", "a"),)
    assert m.schedule("y", fusion=False, inplace=False).steps[1].inplace == ()


def test_equal_kernels_permit_what_one_of_them_needs() -> None:
    m = Maker()
    m.buffer("x", 8, kind="input")
    for name in ("a", "b", "y"):
        m.buffer(name, 8)
    for before, after in (("x", "a"), ("a", "b"), ("b", "y")):
        (i,) = axes(8)
        m.pointwise(after, (i,), apply("exp", m.load(before, i)))
    schedule = m.schedule("a", "y", fusion=False)
    first, second, third = schedule.steps
    assert [step.inplace for step in schedule.steps] == [(), (), (("y", "b"),)]
    assert first.kernel == second.kernel == third.kernel
    assert first.kernel.aliases == (Alias("out0", "in0"),)
    key = (third.backend, third.kernel)
    without, decisions = without_refused(schedule, {key: first.kernel.aliases})
    assert [step.inplace for step in without.steps] == [(), (), ()]
    assert [(d.kind, d.first, d.second) for d in decisions] == [("unaliased", "y", "b")]
    assert without_refused(schedule, {key: ()}) == (schedule, ())


def test_fuel_stops_fusion() -> None:
    assert len(softmax_graph(8, 8).schedule("y", fuel=0).steps) == 3
    assert len(softmax_graph(8, 8).schedule("y", fuel=1).steps) == 2


def test_long_chains_need_no_recursion() -> None:
    m = Maker()
    m.buffer("b0", 4, kind="input")
    (i,) = axes(4)
    for k in range(3000):
        m.buffer(f"b{k + 1}", 4)
        m.pointwise(f"b{k + 1}", (i,), m.load(f"b{k}", i))
    schedule = m.schedule("b3000", fusion=False)
    assert len(schedule.steps) == 3000


@pytest.mark.parametrize("repeat", range(2))
def test_order_is_deterministic(repeat: int) -> None:
    first = softmax_graph(8, 8).schedule("y")
    second = softmax_graph(8, 8).schedule("y")
    assert first.steps == second.steps and first.decisions == second.decisions


def test_a_fused_unit_is_the_union_of_its_members() -> None:
    """Members are in program order, whatever the order in which they were fused; arguments are only what
    the outside has or needs.
    """
    m, i = vectors(64, "x z", "a b c y")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("b", (i,), apply("sin", m.load("z", i)))
    m.pointwise("c", (i,), apply("mul", m.load("b", i), m.load("z", i)))
    m.pointwise("y", (i,), apply("add", m.load("a", i), m.load("c", i)))
    schedule = m.schedule("y", "b")
    (step,) = schedule.steps
    assert isinstance(step, Launch)
    fused = [(d.first, d.second) for d in schedule.decisions if d.kind == "fuse"]
    assert fused[0] != ("n0", "n3"), "the last member is not fused in order"
    assert [node.name for node in step.nodes] == ["n0", "n1", "n2", "n3"]
    assert set(step.writes) == {"b", "y"} and schedule.removed == ("a", "c")
    assert sorted(arg.kind for arg in step.kernel.args) == ["in", "in", "out", "out"]


def test_axes_are_split_where_one_side_counts_in_larger_steps() -> None:
    """Rows of 12 beside tables of 3 by 4 and 6 by 2: what is copied is matched by elements, not by axes."""
    for size, other in (((12,), (3, 4)), ((3, 4), (12,)), ((6, 4), (2, 3, 4)), ((2, 12), (6, 4))):
        m = Maker()
        count = torch.Size(size).numel()
        m.buffer("x", *size, kind="input")
        m.buffer("a", *size)
        m.buffer("b", *other)
        over = axes(*size)
        m.pointwise("a", over, apply("exp", m.load("x", *over)))
        over = axes(*other)
        flat = sum(var * torch.Size(other[d + 1 :]).numel() for d, var in enumerate(over))
        m.pointwise("b", over, apply("neg", load("a", flat, DType.f32)))
        schedule = m.schedule("a", "b")
        assert len(schedule.steps) == 1, (size, other)
        x = torch.randn(size)
        torch.testing.assert_close(run(schedule, {"x": x})["b"].reshape(count), -x.exp().reshape(count))


def test_a_column_that_every_row_reads_is_split_like_the_rows() -> None:
    """Neither side is contiguous, and the shared dimension is two on one side."""
    m = Maker()
    m.buffer("x", 12, 5, kind="input")
    m.buffer("a", 12, 5)
    m.buffer("b", 5, 3, 4)
    i, j = axes(12, 5)
    m.pointwise("a", (i, j), apply("exp", m.load("x", i, j)))
    k, p, q = axes(5, 3, 4)
    m.pointwise("b", (k, p, q), apply("neg", load("a", (p * 4 + q) * 5 + k, DType.f32)))
    schedule = m.schedule("a", "b")
    x = torch.randn(12, 5)
    wanted = -x.exp().t().reshape(5, 3, 4)
    assert len(schedule.steps) == 1
    torch.testing.assert_close(run(schedule, {"x": x})["b"], wanted)


def test_a_sum_over_one_element_is_still_a_loop() -> None:
    m = Maker()
    m.buffer("x", 4, 1, kind="input")
    m.buffer("total", 4)
    (i,), (r,) = axes(4), axes(1, prefix="r")
    m.reduce("total", (i,), (r,), "sum", m.load("x", i, r))
    x = torch.randn(4, 1)
    torch.testing.assert_close(run(m.schedule("total"), {"x": x})["total"], x[:, 0])


def test_sizes_that_only_the_extent_of_an_argument_has_are_arguments_too() -> None:
    """A kernel that fills a part of something larger of unknown size, such as a concatenation."""
    s0, s1 = symbol("s0", 2), symbol("s1", 2)
    m = Maker()
    m.hints.update(s0=3, s1=4)
    m.buffer("x", s0, kind="input")
    m.buffer("other", s1, kind="input")
    m.buffer("y", s0 + s1)
    (i,) = axes(s0)
    m.pointwise("y", (i,), apply("exp", m.load("x", i)))
    (i,) = axes(s1)
    m.pointwise("y", (i,), m.load("other", i), i + s0)
    schedule = m.schedule("y")
    for step in schedule.steps:
        assert isinstance(step, Launch)
        verify_kernel(step.kernel)
        assert [arg.name for arg in step.kernel.args if arg.kind == "size"] == ["s0", "s1"]
    x, other = torch.randn(5), torch.randn(6)
    out = run(schedule, {"x": x, "other": other}, {"s0": 5, "s1": 6})
    torch.testing.assert_close(out["y"], torch.cat((x.exp(), other)))


@pytest.mark.parametrize("outputs", [("z",), ("y", "z")], ids=["passed on alone", "stored as well"])
def test_what_is_stored_is_passed_on_though_its_index_is_written_otherwise(outputs: tuple[str, ...]) -> None:
    """With one axis for two, steps that are no numbers keep an index from being the same text."""
    s0, s1 = symbol("s0", 2), symbol("s1", 16)
    n = (s1 // 8) * (s1 // 8) + 1
    m = Maker(hints={"s0": 2, "s1": 32})
    for name, kind in (("x", "input"), ("y", "temp")):
        m.buffer(name, s0, n, 4, 8, stride=(32 * n, 1, 8 * n, n), kind=kind)
    m.buffer("z", s0, n, 32)
    i, j, k, e = axes(s0, n, 4, 8)
    doubled = apply("mul", m.load("x", i, j, k, e), const(2.0, DType.f32))
    m.pointwise("y", (i, k, e, j), doubled, i, j, k, e)
    p, q, r = axes(s0, n, 32, prefix="j")
    m.pointwise("z", (p, q, r), load("y", p * 32 * n + q + r * n, DType.f32), p, q, r)
    schedule = m.schedule(*outputs)
    (step,) = schedule.steps
    assert [arg.kind for arg in step.kernel.args if arg.kind != "size"] == ["in", *["out"] * len(outputs)]
    x = torch.randn(3, 32, 10)
    given = x.as_strided((3, 10, 4, 8), (320, 1, 80, 10))
    found = run(schedule, {"x": given}, {"s0": 3, "s1": 24})
    torch.testing.assert_close(found["z"], x.transpose(1, 2) * 2)
