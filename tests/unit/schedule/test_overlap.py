"""The order in which computing goes on while collectives run."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace

import pytest

from polyfuse.ir.expr import apply
from polyfuse.schedule.overlap.communication import started_in_order
from polyfuse.schedule.overlap.reorder import Plan, Task, overlapped
from polyfuse.schedule.result import Schedule
from schedule_builder import Maker, axes


class Tasks:
    """Tasks by name."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tasks: list[Task] = []

    def add(
        self, name: str, after: str = "", kind: str = "compute", seconds: float = 1.0, touches=""
    ) -> None:
        before = frozenset(self.names.index(n) for n in after.split())
        ends = tuple(sorted(before)) if kind == "wait" else ()
        self.names.append(name)
        self.tasks.append(Task(kind, before, seconds, ends, tuple(touches.split())))

    def plans(
        self, sizes: dict[str, int] | None = None, growth: float = 0.0, given: frozenset[str] = frozenset()
    ) -> tuple[Plan, Plan]:
        return overlapped(self.tasks, sizes or {}, frozenset(), growth, given)

    def best(self, **more) -> str:
        return " ".join(self.names[n] for n in self.plans(**more)[1].order)


def test_a_wait_stands_before_the_first_reader() -> None:
    t = Tasks()
    t.add("make")
    t.add("start", "make", "start", 2.0)
    t.add("wait", "start", "wait")
    for name in ("other1", "other2", "other3"):
        t.add(name)
    t.add("read", "wait other3")
    given, best = t.plans()
    assert t.best() == "make start other1 other2 other3 wait read"
    assert (given.seconds, best.seconds) == (7.0, 5.0)
    assert (given.hidden, best.hidden) == ({1: 0.0}, {1: 2.0})


def test_who_makes_what_is_sent_goes_first() -> None:
    t = Tasks()
    t.add("other1")
    t.add("other2")
    t.add("make")
    t.add("start", "make", "start", 2.0)
    t.add("wait", "start", "wait")
    t.add("read", "wait other1 other2")
    assert t.best() == "make start other1 other2 wait read"


def test_no_more_is_put_in_between_than_there_is_to_hide() -> None:
    """What is left hides the next one."""
    t = Tasks()
    for k in "ab":
        after = "reada" if k == "b" else ""
        t.add(f"make{k}", after)
        t.add(f"start{k}", f"make{k}", "start", 1.0)
        t.add(f"wait{k}", f"start{k}", "wait")
        t.add(f"read{k}", f"wait{k}")
    for k in range(2):
        t.add(f"other{k}")
    assert t.best() == "makea starta other0 waita reada makeb startb other1 waitb readb"


def test_collectives_keep_their_order() -> None:
    """Though the second could start at once."""
    t = Tasks()
    t.add("slow", seconds=5.0)
    t.add("first", "slow", "start", 1.0)
    t.add("second", "", "start", 3.0)
    t.add("wait1", "first", "wait")
    t.add("wait2", "second", "wait")
    t.add("read", "wait1 wait2")
    order = t.best().split()
    assert order.index("first") < order.index("second")


def test_memory_bounds_it() -> None:
    t = Tasks()
    for k in range(3):
        t.add(f"gather{k}", kind="start", seconds=1.0, touches=f"g{k}")
        t.add(f"wait{k}", f"gather{k}", "wait", touches=f"g{k}")
        t.add(f"use{k}", f"wait{k}" + (f" use{k - 1}" if k else ""), touches=f"g{k} u")
    sizes = {"g0": 100, "g1": 100, "g2": 100, "u": 1}
    given, best = t.plans(sizes, 0.0)
    assert best.order == given.order and best.peak == 101
    given, best = t.plans(sizes, 1.0)
    assert best.peak == 201 and best.seconds < given.seconds
    assert t.best(sizes=sizes, growth=1.0).startswith("gather0 gather1 wait0 use0 gather2")
    assert t.plans(sizes, 2.0)[1].seconds == best.seconds == 4.0, "two at a time are enough"


def test_what_was_saved_counts_until_it_was_read() -> None:
    t = Tasks()
    t.add("start", kind="start", seconds=2.0)
    t.add("wait", "start", "wait")
    t.add("read", "wait", touches="saved")
    t.add("other", touches="other")
    sizes = {"saved": 100, "other": 100}
    assert t.best(sizes=sizes, growth=0.0) == "start other wait read"
    given, best = t.plans(sizes, 0.0, frozenset({"saved"}))
    assert best.order == given.order and given.peak == 100
    assert t.plans(sizes, 1.0, frozenset({"saved"}))[1].peak == 200


def test_what_has_nothing_beside_it_stays() -> None:
    t = Tasks()
    t.add("start", kind="start")
    t.add("wait", "start", "wait")
    t.add("read", "wait")
    given, best = t.plans()
    assert best is given and given.hidden == {0: 0.0}


@pytest.mark.quick(30)
@pytest.mark.parametrize("seed", range(60))
def test_any_order_is_valid_and_none_is_worse(seed: int) -> None:
    dice = random.Random(seed)
    t = Tasks()
    running: list[str] = []
    waited: list[str] = []
    sizes: dict[str, int] = {}
    for number in range(40):
        name = f"n{number}"
        pool = [n for n in t.names if n not in running and t.tasks[t.names.index(n)].kind != "start"]
        after = " ".join(dice.sample(pool, min(len(pool), dice.randrange(3))))
        sizes[name] = dice.randrange(1, 50)
        touched = " ".join([name, *after.split()])
        kind = dice.choice(("compute", "compute", "start", "wait"))
        if kind == "wait" and running:
            ended = running.pop(dice.randrange(len(running)))
            sizes[name] = 0
            t.add(name, ended, "wait", touches=f"{name} {ended}")
            waited.append(ended)
        elif kind == "start":
            t.add(name, after, "start", dice.random() * 3, touched)
            running.append(name)
        else:
            t.add(name, after, "compute", dice.random(), touched)
    growth = dice.choice((0.0, 0.1, 1.0))
    given, best = t.plans(sizes, growth)
    assert sorted(best.order) == list(range(len(t.tasks)))
    position = {number: at for at, number in enumerate(best.order)}
    for number, task in enumerate(t.tasks):
        assert all(position[earlier] < position[number] for earlier in task.before)
    starts = [n for n in best.order if t.tasks[n].kind == "start"]
    assert starts == sorted(starts)
    assert best.seconds <= given.seconds and best.peak <= int(given.peak * (1 + growth))
    assert t.plans(sizes, growth) == (given, best)


def layers(**options: object) -> Schedule:
    """Two layers whose results are summed over processes, and what can be computed beside that."""
    m = Maker()
    m.buffer("x", 512, 512, kind="input")
    for name in ("a", "b", "v", "w", "y"):
        m.buffer(name, 512, 512)
    m.call("aten.mm.out", ("a",), "x", "x", out="out")
    m.start("a")
    m.wait("a")
    m.call("aten.mm.out", ("b",), "a", "x", out="out")
    m.start("b")
    m.wait("b")
    i = axes(512, 512)
    m.pointwise("v", i, apply("exp", m.load("x", *i)))
    m.call("aten.mm.out", ("w",), "v", "x", out="out")
    m.pointwise("y", i, apply("add", m.load("b", *i), m.load("w", *i)))
    return m.schedule("y", **options)


def names(schedule: Schedule) -> list[str]:
    return [getattr(step, "node", None) or step.nodes[0] for step in schedule.steps]


def test_off_is_the_order_of_the_program() -> None:
    schedule = layers(overlap_collectives=False)
    assert [n.name for n in names(schedule)] == [f"n{k}" for k in range(9)]
    assert not [d for d in schedule.decisions if d.kind == "overlap"]


def test_a_graph_is_put_in_order_and_explained() -> None:
    schedule = layers(network_bandwidth=50_000)
    assert [n.name for n in names(schedule)] == ["n0", "n1", "n6", "n2", "n3", "n4", "n7", "n5", "n8"]
    (first, second, whole) = [d for d in schedule.decisions if d.kind == "overlap"]
    assert (first.first, first.second) == ("n1", "n2") and (second.first, second.second) == ("n4", "n5")
    before, after = (int(n) for n in re.findall(r"(\d+) us", whole.reason))
    assert whole.reason.startswith("exposed communication by estimates") and after < before
    assert first.reason.startswith("1 steps of computing are between its start and the wait; by estimates")


@pytest.mark.parametrize("overlaps", (False, True))
def test_where_processes_communicate_less_memory_decides_the_order(overlaps: bool) -> None:
    m = Maker()
    for name, columns in (("x", 512), ("v", 8)):
        m.buffer(name, 512, columns, kind="input")
    for name, columns in (("a", 512), ("r", 512), ("b", 8)):
        m.buffer(name, 512, columns)
    m.call("aten.mm.out", ("a",), "x", "x", out="out")
    m.call("aten.mm.out", ("r",), "x", "x", out="out")
    m.call("aten.mm.out", ("b",), "a", "v", out="out")
    m.start("b")
    m.wait("b")
    found = [n.name for n in names(m.schedule("r", "b", overlap_collectives=overlaps))]
    assert found[:2] == ["n0", "n2"], "the large operand is gone before the large result is made"


def test_an_order_that_overlaps_by_itself_stays() -> None:
    m = Maker()
    for name, columns in (("x", 512), ("v", 8)):
        m.buffer(name, 512, columns, kind="input")
    for name, columns in (("a", 512), ("r", 512), ("b", 8)):
        m.buffer(name, 512, columns)
    m.call("aten.mm.out", ("a",), "x", "x", out="out")
    m.start("a")
    m.call("aten.mm.out", ("r",), "x", "x", out="out")
    m.wait("a")
    m.call("aten.mm.out", ("b",), "a", "v", out="out")
    found = [n.name for n in names(m.schedule("r", "b", overlap_collectives=False))]
    assert found == ["n0", "n1", "n2", "n3", "n4"]


def test_collectives_of_all_groups_start_in_the_order_of_the_program() -> None:
    m = Maker()
    for name in ("a", "b", "c"):
        m.buffer(name, 64)
    i = axes(64)
    m.pointwise("c", i, apply("exp", m.load("a", *i)))
    for name in ("a", "c", "b"):
        m.start(name)
    units = [SimpleNamespace(members=[SimpleNamespace(node=node)]) for node in m.graph("c").nodes]
    edges: list[set[int]] = [set(), set(), {0}, set()]
    assert started_in_order(units, edges) == [set(), set(), {0, 1}, {2}]
    assert edges[3] == set()


def test_a_slow_network_is_given_more_beside_it() -> None:
    schedule = layers(overlap_collectives=True, network_bandwidth=1)
    assert [n.name for n in names(schedule)][:4] == ["n0", "n1", "n6", "n7"]


def test_where_nothing_can_be_done_beside_it_the_order_stays() -> None:
    m = Maker()
    i = axes(64)
    m.buffer("x", 64, kind="input")
    for name in ("a", "b"):
        m.buffer(name, 64)
    m.pointwise("a", i, apply("exp", m.load("x", *i)))
    m.start("a")
    m.wait("a")
    m.pointwise("b", i, apply("sin", m.load("a", *i)))
    schedule = m.schedule("b", overlap_collectives=True)
    assert [n.name for n in names(schedule)] == ["n0", "n1", "n2", "n3"]
    (rest,) = [d for d in schedule.decisions if d.kind == "overlap"]
    assert "no other order is better" in rest.reason and "exposed communication" in rest.reason


def test_a_graph_without_collectives_is_scheduled_as_without_the_option() -> None:
    m = Maker()
    i = axes(64)
    for name in ("x", "a"):
        m.buffer(name, 64, kind="input" if name == "x" else "temp")
    m.pointwise("a", i, apply("exp", m.load("x", *i)))
    assert m.schedule("a") == m.schedule("a", overlap_collectives=False)


@pytest.mark.parametrize("overlaps", (False, True))
def test_what_runs_beside_a_collective_is_not_fused_with_what_waits(overlaps: bool) -> None:
    m = Maker()
    i = axes(64, 64)
    m.buffer("x", 64, 64, kind="input")
    for name in ("a", "b", "c"):
        m.buffer(name, 64, 64)
    m.pointwise("a", i, apply("exp", m.load("x", *i)))
    m.start("a")
    m.wait("a")
    m.pointwise("b", i, apply("add", m.load("a", *i), m.load("x", *i)))
    m.pointwise("c", i, apply("sin", m.load("x", *i)))
    schedule = m.schedule("b", "c", overlap_collectives=overlaps, overlap_memory=100)
    assert len(schedule.steps) == (5 if overlaps else 4)
