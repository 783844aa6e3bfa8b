"""Dependencies, order, dead nodes, lifetimes: what comes before what, and how long things live."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply, const
from polyfuse.ir.graph import Graph, GraphOutput
from polyfuse.ir.nodes import Node, SymbolPath
from polyfuse.ir.types import DType
from polyfuse.schedule import Call, Launch
from polyfuse.schedule.deps import dependencies, live_graph, stable_order, storage_roots
from polyfuse.schedule.fusion.fuse import link
from polyfuse.schedule.fusion.space import fresh_axes
from polyfuse.schedule.fusion.units import call_unit
from polyfuse.symbolic import symbol
from schedule_builder import Maker, axes, run, scheduled, vectors


def chain_of(*nodes: tuple[str, tuple[str, ...]]) -> Maker:
    """Calls that make the first name from the others."""
    m = Maker()
    m.buffer("x", 4, kind="input")
    for output, inputs in nodes:
        m.call("aten.sin.default", (m.buffer(output, 4),), *inputs)
    return m


def deps_of(m: Maker, *outputs: str):
    graph = m.schedule(*outputs, fusion=False).graph
    roots = storage_roots(graph)
    return graph, roots, dependencies(graph, roots)


def test_a_diamond() -> None:
    m = chain_of(("a", ("x",)), ("b", ("a",)), ("c", ("a",)), ("d", ("b", "c")))
    _, _, deps = deps_of(m, "d")
    assert [sorted(s) for s in deps.strong] == [[], [0], [0], [1, 2]]
    assert not any(deps.weak)


def test_a_write_follows_the_reads_of_the_version_before() -> None:
    m = Maker()
    m.buffer("x", 4, kind="input")
    m.buffer("a", 4)
    m.buffer("b", 4)
    m.call("aten.sin.default", ("a",), "x")
    m.call("aten.zero_.default", (), "x", out="none", mutates=("x",))
    m.call("aten.zero_.default", (), "x", out="none", mutates=("x",))
    m.call("aten.sin.default", ("b",), "x")
    _, _, deps = deps_of(m, "a", "b")
    assert [sorted(s) for s in deps.weak][1] == [0]
    assert [sorted(s) for s in deps.strong] == [[], [], [1], [2]], "the reader sees the second write"


def test_an_order_edge_keeps_nothing_alive() -> None:
    m, i = vectors(4, "x", "unused")
    m.pointwise("unused", (i,), apply("exp", m.load("x", i)))
    m.pointwise("x", (i,), const(1.0, DType.f32))
    schedule = m.schedule()
    assert [d.first for d in schedule.decisions if d.kind == "remove"] == ["n0"]
    assert [n.name for step in schedule.steps for n in step.nodes] == ["n1"]
    assert run(schedule, {"x": torch.zeros(4)})["x"].eq(1).all()


def test_an_order_edge_that_a_value_implies_does_not_stop_a_fusion() -> None:
    """The write must follow the first reader, and needs its value too: one kernel."""
    m, i = vectors(4, "x", "a")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("x", (i,), apply("add", m.load("a", i), m.load("x", i)))
    schedule = m.schedule()
    assert len(schedule.steps) == 1
    x = torch.randn(4)
    before = x.clone()
    torch.testing.assert_close(run(schedule, {"x": x})["x"], before.exp() + before)


def test_dead_chains_go_in_one_pass_and_effects_stay() -> None:
    m = chain_of(("a", ("x",)), ("b", ("a",)), ("c", ("b",)), ("y", ("x",)))
    m.call("aten.print.default", (), out="none", ordered=True)
    schedule = m.schedule("y")
    assert [d.first for d in schedule.decisions if d.kind == "remove"] == ["n0", "n1", "n2"]
    assert [step.node.op for step in schedule.steps if isinstance(step, Call)] == [
        "aten.sin.default",
        "aten.print.default",
    ]


def test_effects_keep_their_order() -> None:
    m = Maker()
    for i in range(6):
        m.call(f"aten.print.{i}", (), out="none", ordered=True)
    assert [s.node.op for s in m.schedule().steps] == [f"aten.print.{i}" for i in range(6)]


def test_whoever_uses_a_size_follows_the_call_that_defines_it() -> None:
    m = Maker()
    count = symbol("u0", 0, 100)
    m.buffer("x", 4, kind="input")
    m.buffer("found", count, 1, dtype=DType.i64)
    m.buffer("y", count)
    m.call("aten.nonzero.default", ("found",), "x", symbols=(("u0", SymbolPath("size", 0, 0)),))
    (i,) = axes(count)
    m.pointwise("y", (i,), const(1.0, DType.f32))
    schedule = m.schedule("y")
    assert [type(s).__name__ for s in schedule.steps] == ["Call", "Launch"]
    _, _, deps = deps_of(m, "y")
    assert sorted(deps.strong[1]) == [0]


def test_views_of_views_keep_their_base() -> None:
    m = chain_of(("a", ("x",)))
    m.call("aten.t.default", (m.buffer("v", 4),), "a", aliases=("a",))
    m.call("aten.t.default", (m.buffer("w", 4),), "v", aliases=("v",))
    m.call("aten.sin.default", (m.buffer("between", 4),), "x")
    m.call("aten.sin.default", (m.buffer("y", 4),), "w")
    schedule = m.schedule("y", "between")
    last = {name: i for i, names in enumerate(schedule.last_use) for name in names}
    reader = next(i for i, step in enumerate(schedule.steps) if "y" in step.writes)
    assert last["a"] == last["v"] == last["w"] == reader
    _, roots, _ = deps_of(m, "y", "between")
    assert roots["a"] == roots["v"] == roots["w"]


def test_last_uses_are_those_of_a_simple_search() -> None:
    m = chain_of(("a", ("x",)), ("b", ("a",)), ("c", ("a", "b")), ("d", ("c",)), ("e", ("b", "d")))
    schedule = m.schedule("e")
    for name in ("a", "b", "c", "d", "x"):
        wanted = max(i for i, step in enumerate(schedule.steps) if name in (*step.reads, *step.writes))
        assert [i for i, names in enumerate(schedule.last_use) if name in names] == [wanted]
    assert not any("e" in names for names in schedule.last_use), "a result never dies here"


def test_ancestors_are_what_can_be_reached() -> None:
    m = chain_of(("a", ("x",)), ("b", ("a",)), ("c", ("x",)), ("d", ("b", "c")), ("e", ("c",)))
    graph, _, deps = deps_of(m, "d", "e")
    units = [call_unit(node, i) for i, node in enumerate(graph.nodes)]
    link(units, deps)

    def reach(i: int) -> set[int]:
        return {k for j in deps.strong[i] | deps.weak[i] for k in (j, *reach(j))}

    for i, unit in enumerate(units):
        assert unit.before == sum(1 << j for j in reach(i))
        assert unit.after == sum(1 << j for j in range(len(units)) if i in reach(j))
    assert fresh_axes()(3) is not None


def test_order_is_topological_near_the_program_and_reports_cycles() -> None:
    assert stable_order([set(), {2}, set(), {1}], [0, 1, 2, 3]) == [0, 2, 1, 3]
    try:
        stable_order([{1}, {0}], [0, 1])
    except ValueError as error:
        assert "cycle" in str(error)
    else:
        raise AssertionError("a cycle went unnoticed")


def test_only_what_mutates_an_input_is_left_of_a_graph_without_results() -> None:
    m = Maker()
    m.buffer("x", 4, kind="input")
    (i,) = axes(4)
    m.pointwise("x", (i,), const(2.0, DType.f32))
    schedule = m.schedule()
    assert len(schedule.steps) == 1
    assert live_graph(m.graph(), []) == m.graph()


def test_generated_kernels_address_the_one_storage_of_a_mutated_buffer() -> None:
    m, i = vectors(4, "x", "y")
    m.pointwise("x", (i,), apply("add", m.load("x", i), const(1.0, DType.f32)))
    m.pointwise("x", (i,), apply("mul", m.load("x", i), const(2.0, DType.f32)))
    m.pointwise("y", (i,), apply("neg", m.load("x", i)))
    for fusion in (True, False):
        schedule = m.schedule("y", fusion=fusion)
        assert {o for step in schedule.steps for o in step.operands} == {"x", "y"}
        x = torch.randn(4)
        wanted = -(x + 1) * 2
        torch.testing.assert_close(run(schedule, {"x": x})["y"], wanted)


def test_a_second_reader_prevents_writing_in_place() -> None:
    m, i = vectors(8, "x", "a y z")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("y", (i,), apply("neg", m.load("a", i)))
    m.pointwise("z", (i,), apply("sin", m.load("a", i)))
    schedule = m.schedule("y", "z", fusion=False)
    assert [step.inplace for step in schedule.steps if isinstance(step, Launch)] == [(), (), (("z", "a"),)]


def test_reading_elsewhere_prevents_writing_in_place() -> None:
    m, i = vectors(8, "x", "a y")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("y", (i,), m.load("a", 7 - i))
    assert m.schedule("y", fusion=False).steps[1].inplace == ()


def test_empty_kernels_are_scheduled_and_do_nothing() -> None:
    m = Maker()
    m.buffer("x", 0, 4, kind="input")
    m.buffer("y", 0, 4)
    i, j = axes(0, 4)
    m.pointwise("y", (i, j), apply("exp", m.load("x", i, j)))
    assert run(m.schedule("y"), {"x": torch.empty(0, 4)})["y"].shape == (0, 4)


def test_a_size_alone_keeps_the_call_that_defines_it() -> None:
    """Nobody reads what the call finds, only how much it is."""
    m = Maker()
    count = symbol("u0", 0, 100)
    m.buffer("x", 4, kind="input")
    m.buffer("found", count, 1, dtype=DType.i64)
    m.buffer("dead", count, 1, dtype=DType.i64)
    m.call("aten.nonzero.default", ("found",), "x", symbols=(("u0", SymbolPath("size", 0, 0)),))
    m.call("aten.nonzero.default", ("dead",), "x", symbols=(("u1", SymbolPath("size", 0, 0)),))
    results = (GraphOutput(2 * count, "size"),)
    graph = Graph("g", "inference", tuple(m.inputs), results, m.buffers, tuple(m.nodes), {}, {})
    schedule = scheduled(graph, Settings(), lambda device: (m.backend(Settings()),))
    assert [step.writes for step in schedule.steps] == [("found",)]


def test_what_writes_to_a_constant_stays() -> None:
    m = Maker()
    m.buffer("k", 4, kind="constant")
    (i,) = axes(4)
    m.pointwise("k", (i,), const(2.0, DType.f32))
    assert [step.writes for step in m.schedule().steps] == [("k",)]


def test_an_unknown_kind_of_node_is_an_error() -> None:
    @dataclass(frozen=True)
    class Odd(Node):
        def writes(self) -> tuple[str, ...]:
            return ("y",)

    m = Maker()
    m.buffer("y", 4)
    m.nodes.append(Odd("n0"))
    with pytest.raises(TypeError, match="does not know Odd"):
        m.schedule("y")


def test_a_buffer_that_is_changed_where_it_was_made_keeps_its_storage() -> None:
    """All its accesses are in one kernel, but there are two versions of it."""
    m, i = vectors(8, "x", "a y")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("a", (i,), apply("add", m.load("a", i), const(1.0, DType.f32)))
    m.pointwise("y", (i,), apply("neg", m.load("a", i)))
    schedule = m.schedule("y")
    assert len(schedule.steps) == 1 and schedule.removed == ()
    x = torch.randn(8)
    torch.testing.assert_close(run(schedule, {"x": x})["y"], -(x.exp() + 1))
