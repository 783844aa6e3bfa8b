"""Which fusion comes first, loop order, horizontal fusion, reports."""

from __future__ import annotations

import logging

import torch

from polyfuse.ir.expr import apply, load
from polyfuse.ir.nodes import Scatter
from polyfuse.ir.types import DType
from polyfuse.program import bytes_moved
from polyfuse.schedule.draw import dot
from polyfuse.schedule.fusion.score import distance, score, shared_bytes
from polyfuse.schedule.fusion.units import UnitSpaces, loop_unit
from polyfuse.schedule.kernels.axes import loop_order, merge_axes
from polyfuse.symbolic import axis, axis_size
from schedule_builder import Maker, axes, reasons, run, vectors


def units_of(m: Maker, *outputs: str):
    graph = m.schedule(*outputs, fusion=False).graph
    spaces = UnitSpaces()
    return graph, [loop_unit(n, i, "anything", "cpu", spaces) for i, n in enumerate(graph.nodes)]


def test_nearer_comes_first_at_equal_bytes_and_like_kinds_before_all() -> None:
    m = Maker()
    m.buffer("x", 8, 8, kind="input")
    for k in range(3):
        m.buffer(f"b{k}", 8, 8)
        i, j = axes(8, 8)
        m.pointwise(f"b{k}", (i, j), apply("exp", m.load("x", i, j)))
    m.buffer("total", 8)
    (i,), (r,) = axes(8), axes(8, prefix="r")
    m.reduce("total", (i,), (r,), "sum", m.load("x", i, r))
    graph, (a, b, c, total) = units_of(m, "b0", "b1", "b2", "total")
    assert shared_bytes(graph, a, b, int) == 8 * 8 * 4
    assert distance(a, b) == 1 and distance(a, c) == 2
    assert score(graph, a, b, int) > score(graph, a, c, int) > score(graph, c, total, int)


def test_epilogues_of_matmuls_are_ranked_first_or_last() -> None:
    m = Maker()
    m.buffer("x", 8, 8, kind="input")
    for name in ("product", "after", "other"):
        m.buffer(name, 8, 8)
    (i, j), (r,) = axes(8, 8), axes(8, prefix="r")
    m.reduce("product", (i, j), (r,), "dot", m.load("x", i, r), m.load("x", r, j))
    m.pointwise("after", (i, j), apply("exp", m.load("product", i, j)))
    m.pointwise("other", (i, j), apply("sin", m.load("after", i, j)))
    graph, (product, after, other) = units_of(m, "after", "other")
    usual, last = (score(graph, product, after, int, epilogue_first=first) for first in (True, False))
    assert last < score(graph, after, other, int) < usual


def _readers(count: int, **options: object) -> int:
    """How often the last reader of `x` is fused, where only the first one has its loops."""
    m = Maker()
    m.buffer("x", 8, 8, kind="input")
    for k in range(count):
        (i,), (r,) = axes(8 - k % (count - 1)), axes(8, prefix="r")
        m.buffer(f"b{k}", 8 - k % (count - 1))
        m.reduce(f"b{k}", (i,), (r,), "max" if k else "sum", m.load("x", i, r))
    decisions = m.schedule(*(f"b{k}" for k in range(count)), **options).decisions
    return sum(d.kind == "fuse" and f"n{count - 1}" in (d.second, d.first) for d in decisions)


def test_kernels_are_paired_with_as_many_as_asked() -> None:
    assert _readers(8, fusion_candidates=6) == 0
    assert _readers(8, fusion_candidates=7) == 1
    assert _readers(8, fusion_candidates=0) == 1


def test_two_conflicting_candidates() -> None:
    """The pair that shares more goes first, and the other is judged against the result."""
    m, i = vectors(64, "x z", "a b y")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("b", (i,), apply("sin", m.load("z", i)))
    m.pointwise("y", (i,), apply("add", apply("mul", m.load("a", i), m.load("b", i)), m.load("z", i)))
    schedule = m.schedule("y")
    fused = [(d.first, d.second) for d in schedule.decisions if d.kind == "fuse"]
    assert fused == [("n1", "n2"), ("n0", "n1+n2")]
    assert len(schedule.steps) == 1


class TestLoopOrder:
    def test_contiguous(self) -> None:
        i, j, k = axes(4, 5, 6)
        assert loop_order((i, j, k), [i * 30 + j * 6 + k], int) == (i, j, k)

    def test_the_majority_decides(self) -> None:
        i, j = axes(4, 5)
        transposed = i + 4 * j
        assert loop_order((i, j), [transposed, transposed, i * 5 + j], int) == (j, i)
        assert loop_order((i, j), [transposed, i * 5 + j, i * 5 + j], int) == (i, j)

    def test_it_can_be_turned_off(self) -> None:
        m = Maker()
        m.buffer("x", 4, 5, stride=(1, 4), kind="input")
        m.buffer("y", 4, 5, stride=(1, 4))
        i, j = axes(4, 5)
        m.pointwise("y", (i, j), apply("exp", m.load("x", i, j)))
        (step,) = m.schedule("y").steps
        assert [axis_size(a) for a in step.kernel.axes] == [20]
        (step,) = m.schedule("y", loop_ordering=False).steps
        assert [axis_size(a) for a in step.kernel.axes] == [4, 5]

    def test_only_what_every_index_steps_through_as_one_is_merged(self) -> None:
        i, j, k = axes(4, 5, 6)
        merged = merge_axes((i, j, k), [i * 30 + j * 6 + k, j * 6 + k], "p")
        assert [axis_size(a) for a in merged.axes] == [4, 30]

    def test_axes_of_one_element_are_dropped(self) -> None:
        m = Maker()
        m.buffer("x", 1, 4, 1, kind="input")
        m.buffer("y", 1, 4, 1)
        i = axes(1, 4, 1)
        m.pointwise("y", i, apply("exp", m.load("x", *i)))
        unit = loop_unit(m.nodes[0], 0, "anything", "cpu", UnitSpaces())
        assert [axis_size(a) for a in unit.space.axes] == [4]


def entries(sizes: list[int], ops: tuple[str, ...] = ("exp", "neg")) -> tuple[Maker, list[str]]:
    """A chain of operators on each of several tensors, as foreach makes them."""
    m = Maker()
    names = []
    for k, n in enumerate(sizes):
        m.buffer(f"x{k}", n, kind="input")
        previous = f"x{k}"
        for step, op in enumerate(ops):
            name = m.buffer(f"b{k}_{step}", n)
            (i,) = axes(n)
            m.pointwise(name, (i,), apply(op, m.load(previous, i)))
            previous = name
        names.append(previous)
    return m, names


class TestHorizontalFusion:
    def test_entries_share_a_kernel_on_request(self) -> None:
        m, names = entries([8, 8, 8])
        assert len(m.schedule(*names).steps) == 3
        schedule = m.schedule(*names, horizontal_fusion=True)
        assert len(schedule.steps) == 1
        inputs = {f"x{k}": torch.randn(8) for k in range(3)}
        out = run(schedule, inputs)
        for k, name in enumerate(names):
            torch.testing.assert_close(out[name], -inputs[f"x{k}"].exp())
        assert "they do the same to other data" in reasons(schedule, "fuse")

    def test_without_it_they_share_one_built_kernel(self) -> None:
        m, names = entries([8, 8, 8])
        assert len({step.kernel for step in m.schedule(*names).steps}) == 1

    def test_dead_entries_are_left_out(self) -> None:
        m, names = entries([8, 8, 8])
        schedule = m.schedule(names[0], names[2], horizontal_fusion=True)
        (step,) = schedule.steps
        assert [n.name for n in step.nodes] == ["n0", "n1", "n4", "n5"]

    def test_other_sizes_stay_apart(self) -> None:
        m, names = entries([8, 8, 9])
        assert [len(s.nodes) for s in m.schedule(*names, horizontal_fusion=True).steps] == [4, 2]

    def test_a_consumer_joins_its_own_entry_first(self) -> None:
        m, names = entries([8, 8])
        m.buffer("y", 8)
        (i,) = axes(8)
        m.pointwise("y", (i,), apply("sin", m.load(names[0], i)))
        schedule = m.schedule("y", names[1], horizontal_fusion=True)
        fused = [(d.first, d.second) for d in schedule.decisions if d.kind == "fuse"]
        assert ("n0+n1", "n4") in fused or ("n1", "n4") in fused

    def test_no_more_than_fit(self) -> None:
        m, names = entries([8] * 6)
        schedule = m.schedule(*names, horizontal_fusion=True, max_fusion_size=4)
        assert [len(s.nodes) for s in schedule.steps] == [4, 4, 4]


def test_refusals_and_rounds_are_logged(caplog) -> None:
    m = Maker()
    m.buffer("x", 8, kind="input")
    m.buffer("a", 8)
    m.buffer("b", 7)
    (i,) = axes(8)
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    (i,) = axes(7)
    m.pointwise("b", (i,), load("a", i + 1, DType.f32))
    with caplog.at_level(logging.DEBUG, "polyfuse.schedule"):
        m.schedule("b")
    text = caplog.text
    assert "n0 and n1 are not fused: their iteration spaces" in text
    assert "a round of fusion took 2 units to 2" in text


def test_a_drawing_shows_launches_calls_and_flow() -> None:
    m, i = vectors(8, "x", "a y")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.call("aten.sin.default", ("y",), "a")
    text = dot(m.schedule("y"))
    assert "in_0 -> s0" in text and "s0 -> s1" in text and "s1 -> out_0" in text
    assert "aten.sin.default" in text and text.count("{") == text.count("}")


def test_an_addition_moves_three_buffers() -> None:
    m, i = vectors(8, "x y", "z")
    m.pointwise("z", (i,), apply("add", m.load("x", i), m.load("y", i)))
    assert bytes_moved(m.schedule("z")) == (3 * 8 * 4, 3 * 8 * 4)


def test_a_scatter_moves_what_it_touches() -> None:
    """A combining store reads its target too; no more of a large target is touched than there are points."""
    for mode, size, moved in (("set", 4, 4 + 8), ("add", 4, 4 + 4 + 8), ("add", 64, 8 + 8 + 8)):
        m = Maker()
        m.buffer("at", 8, dtype=DType.i64, kind="input")
        m.buffer("x", 8, kind="input")
        m.buffer("y", size, kind="input")
        (i,) = axes(8)
        index = axis("@0", size)
        m.nodes.append(Scatter("n0", (i,), (), "y", index, (m.load("at", i),), m.load("x", i), mode))
        assert bytes_moved(m.schedule())[0] == 4 * moved + 8 * 8


def test_inside_a_kernel_only_results_are_stored_and_numbering_is_dense() -> None:
    m, names = entries([8], ("exp", "neg", "sin", "cos"))
    schedule = m.schedule(*names)
    (step,) = schedule.steps
    assert schedule.removed == ("b0_0", "b0_1", "b0_2")
    assert [a.name for a in step.kernel.args] == ["in0", "out0"]


def test_what_is_overwritten_with_itself_changed_moves_twice() -> None:
    m, i = vectors(8, "x y")
    m.pointwise("x", (i,), apply("add", m.load("x", i), m.load("y", i)))
    assert bytes_moved(m.schedule()) == (3 * 8 * 4, 3 * 8 * 4)
