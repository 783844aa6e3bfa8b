"""Collectives in a schedule: their order, their memory, and that nothing of them is dropped."""

from __future__ import annotations

from polyfuse.ir.expr import apply
from polyfuse.schedule import Call
from polyfuse.schedule.deps import dependencies, live_graph, storage_roots
from schedule_builder import Maker, axes, gathered


def three_sums(*groups: str) -> Maker:
    """Sums over processes of three buffers, each started and then waited for."""
    m = Maker()
    (i,) = axes(4)
    m.buffer("x", 4, kind="input")
    for k, _ in enumerate(groups):
        m.pointwise(m.buffer(f"s{k}", 4), (i,), apply("exp", m.load("x", i)))
    for k, group in enumerate(groups):
        m.start(f"s{k}", group)
    for k, _ in enumerate(groups):
        m.wait(f"s{k}")
    return m


def test_collectives_of_one_group_keep_their_order() -> None:
    m = three_sums("a", "b", "a")
    graph = m.graph("s0")
    deps = dependencies(graph, storage_roots(graph))
    assert [sorted(s) for s in deps.weak[3:6]] == [[], [], [3]]
    assert [sorted(s) for s in deps.strong[3:6]] == [[0], [1], [2]], "and follow who computes their operands"
    assert [sorted(s) for s in deps.strong[6:9]] == [[3], [4], [5]]


def test_communication_and_other_effects_do_not_wait_for_each_other() -> None:
    m = three_sums("a")
    m.call("aten.print.default", (), out="none", ordered=True)
    graph = m.graph("s0")
    deps = dependencies(graph, storage_roots(graph))
    assert not deps.weak[-1] and not deps.strong[-1]


def test_a_write_waits_for_who_reads_elsewhere() -> None:
    m = Maker()
    (i,) = axes(4)
    m.buffer("x", 4, kind="input")
    m.buffer("g", 8)
    m.start("g", source="x")
    m.wait("g", "x")
    m.pointwise("x", (i,), apply("exp", m.load("x", i)))
    graph = m.graph("g")
    deps = dependencies(graph, storage_roots(graph))
    assert sorted(deps.strong[2] | deps.weak[2]) == [0, 1]


def test_no_communication_is_dead() -> None:
    m = three_sums("a")
    m.buffer("y", 4)
    m.call("aten.sin.default", ("y",), "x")
    graph = m.graph("y")
    assert live_graph(graph, []) is graph
    assert sum(isinstance(step, Call) for step in m.schedule("y").steps) == 3


def test_operands_die_at_the_wait() -> None:
    m = Maker()
    (i,) = axes(4)
    m.buffer("x", 4, kind="input")
    for name in ("a", "b", "c"):
        m.buffer(name, 4)
    m.buffer("g", 8)
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.start("g", source="a")
    m.call("aten.sin.default", ("b",), "x")
    m.wait("g", "a")
    m.pointwise("c", (i,), apply("add", m.load("b", i), m.load("g", i)))
    schedule = m.schedule("c")
    assert [step.node.name for step in schedule.steps if isinstance(step, Call)] == ["n1", "n2", "n3"]
    assert [sorted(names) for names in schedule.last_use] == [[], [], ["x"], ["a"], ["b", "g"]]


def test_what_nobody_waits_for_does_not_die() -> None:
    m = gathered()
    assert not any({"a", "g"}.intersection(names) for names in m.schedule("b").last_use)
    m.wait("g", "a")
    assert {"a", "g"}.intersection(m.schedule("b").last_use[-1]) == {"a", "g"}
