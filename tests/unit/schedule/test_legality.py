"""One crafted pair for each reason against a fusion, and for each kind of fusion that is made."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyfuse.ir.expr import apply, const, load
from polyfuse.ir.nodes import Origin, Scan, Scatter
from polyfuse.ir.types import DType
from polyfuse.plugin import Claim, FusionPair, FusionRule, FusionRules, No, TargetInfo, Yes
from polyfuse.schedule import Launch
from polyfuse.symbolic import axis
from schedule_builder import Anything, Maker, axes, reasons, run, scheduled, vectors


def two_readers(count: int = 8, **buffer) -> Maker:
    """`a = exp(x)` and `b = -x`."""
    m = Maker()
    m.buffer("x", count, kind="input")
    for name, op in (("a", "exp"), ("b", "neg")):
        m.buffer(name, count, **buffer)
        (i,) = axes(count)
        m.pointwise(name, (i,), apply(op, m.load("x", i)))
    return m


def two_strangers(count: int = 8) -> Maker:
    """`a = exp(x)` and `b = exp(y)`."""
    m = Maker()
    for source, name in (("x", "a"), ("y", "b")):
        m.buffer(source, count, kind="input")
        m.buffer(name, count)
        (i,) = axes(count)
        m.pointwise(name, (i,), apply("exp", m.load(source, i)))
    return m


def test_other_devices() -> None:
    m = two_readers()
    m.buffer("b", 8, device="meta")
    assert reasons(m.schedule("a", "b")) == ["they run on different devices, cpu and meta"]


def test_a_rule_may_refuse() -> None:
    def alone(pair: FusionPair) -> Claim:
        return No("one at a time") if pair.first[0].name == "n0" else Yes()

    m = two_readers()
    m.rules = FusionRules([("mine", FusionRule("alone", allows=alone))])
    assert reasons(m.schedule("a", "b")) == ["one at a time (rule mine.alone)"]


def test_a_rule_is_called_with_the_pair() -> None:
    seen: list[FusionPair] = []

    def look(pair: FusionPair) -> int:
        seen.append(pair)
        return 0

    m = two_readers()
    m.rules = FusionRules([("mine", FusionRule("look", worth=look))])
    m.schedule("a", "b")
    (pair,) = seen
    assert [node.name for node in (*pair.first, *pair.second)] == ["n0", "n1"]
    assert (pair.device, pair.backend, pair.loop, pair.buffers) == ("cpu", "anything", 1, 3)
    assert pair.points * 4 == pair.shared_bytes == pair.touched_bytes // 3


@pytest.mark.parametrize("favourite", ["b", "c"])
def test_what_is_worth_most_is_fused_first(favourite: str) -> None:
    """Of two readers of the same data, as many as fit into a kernel of two."""
    m = Maker()
    m.buffer("x", 8, kind="input")
    (i,) = axes(8)
    for name, op in (("a", "exp"), ("b", "neg"), ("c", "sin")):
        m.buffer(name, 8)
        m.pointwise(name, (i,), apply(op, m.load("x", i)))

    def worth(pair: FusionPair) -> int:
        return 1000 if {n.output for n in (*pair.first, *pair.second)} == {"a", favourite} else -1000

    m.rules = FusionRules([("mine", FusionRule("pairs", worth=worth))])
    schedule = m.schedule("a", "b", "c", max_fusion_size=2)
    (pair,) = [step for step in schedule.steps if len(step.nodes) == 2]
    assert {node.output for node in pair.nodes} == {"a", favourite}


def test_other_backends() -> None:
    class Picky(Anything):
        name = "picky"

        def claims(self, node):
            return No("only exp") if node.value.op != "exp" else Yes()

    from polyfuse.base.settings import Settings

    m = two_readers()
    graph = m.graph("a", "b")
    settings = Settings.resolve(None, {})
    schedule = scheduled(graph, settings, lambda device: (Picky(settings), Anything(settings)))
    assert [step.backend for step in schedule.steps] == ["picky", "anything"]
    assert reasons(schedule) == ["different backends generate them, picky and anything"]
    assert reasons(schedule, "backend") == ["only exp"]


def test_too_many_operations() -> None:
    m = two_readers()
    assert len(m.schedule("a", "b", max_fusion_size=2).steps) == 1
    assert reasons(m.schedule("a", "b", max_fusion_size=1)) == [
        "together they have 2 operations, more than max_fusion_size"
    ]


@pytest.mark.parametrize(("distance", "kernels"), [(64, 1), (65, 2)])
def test_far_apart(distance: int, kernels: int) -> None:
    """Two readers of one input, with calls between them; the far one is not drawn near."""
    m = two_readers()
    last = m.nodes.pop()
    m.buffer("z", 8, kind="input")
    for i in range(distance - 1):
        m.call("aten.sin.default", (m.buffer(f"c{i}", 8),), "z")
    m.nodes.append(last)
    schedule = m.schedule("a", "b", *(f"c{i}" for i in range(distance - 1)))
    assert sum(isinstance(step, Launch) for step in schedule.steps) == kernels
    wanted = (
        [] if kernels == 1 else ["they are far apart, and fusing them would keep buffers alive between them"]
    )
    assert reasons(schedule) == wanted


def test_a_path_through_a_call() -> None:
    m = Maker()
    m.buffer("x", 8, kind="input")
    for name in "abc":
        m.buffer(name, 8)
    (i,) = axes(8)
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.call("aten.sin.default", ("b",), "a")
    m.pointwise("c", (i,), apply("add", m.load("a", i), m.load("b", i)))
    schedule = m.schedule("c")
    assert len(schedule.steps) == 3
    assert reasons(schedule) == ["n1 (aten.sin.default) runs between them"]


def test_a_cycle_that_only_an_earlier_fusion_makes_possible() -> None:
    """A feeds C, D feeds B, and C and D are one kernel: A and B cannot be one too."""
    m = Maker()
    m.buffer("x", 8, kind="input")
    m.buffer("big", 4, 8, kind="input")
    for name, size in (("a", (8,)), ("d", (4, 8)), ("c", (4, 8)), ("b", (8,))):
        m.buffer(name, *size)
    (i,) = axes(8)
    j, k = axes(4, 8)
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.pointwise("d", (j, k), apply("sin", m.load("big", j, k)))
    m.pointwise("c", (j, k), apply("add", m.load("big", j, k), m.load("a", k)))
    m.call("aten.amax.default", ("b",), "d", (0,))
    m.buffer("e", 8)
    m.pointwise("e", (i,), apply("add", m.load("x", i), m.load("b", i)))
    schedule = m.schedule("c", "e")
    fused = [d for d in schedule.decisions if d.kind == "fuse"]
    assert [(d.first, d.second) for d in fused] == [("n1", "n2")]
    assert any("runs between them" in r for r in reasons(schedule))
    inputs = {"x": torch.randn(8), "big": torch.randn(4, 8)}
    assert [type(s).__name__ for s in schedule.steps].count("Call") == 1
    assert inputs


def test_siblings_that_share_nothing_pair_only_on_request() -> None:
    assert len(two_strangers().schedule("a", "b").steps) == 2
    schedule = two_strangers().schedule("a", "b", aggressive_fusion=True)
    assert len(schedule.steps) == 1
    x, y = torch.randn(8), torch.randn(8)
    out = run(schedule, {"x": x, "y": y})
    torch.testing.assert_close(out["a"], x.exp())
    torch.testing.assert_close(out["b"], y.exp())


def test_reading_what_was_scattered_waits_even_at_the_same_indices() -> None:
    m = Maker()
    m.buffer("at", 8, dtype=DType.i64, kind="input")
    m.buffer("x", 8, kind="input")
    m.buffer("y", 8)
    (i,) = axes(8)
    m.nodes.append(Scatter("s", (i,), (), "x", axis("@0", 8), (m.load("at", i),), m.load("at", i), "add"))
    m.pointwise("y", (i,), apply("neg", m.load("x", i)))
    (reason,) = reasons(m.schedule("y"))
    assert "x is accessed at data-dependent indices" in reason


def test_aligned_mutation_fuses_and_a_shifted_one_does_not() -> None:
    for shift, kernels in ((0, 1), (1, 2)):
        m = Maker()
        m.buffer("x", 8, kind="input")
        m.buffer("y", 7)
        (i,) = axes(7)
        m.pointwise("y", (i,), apply("exp", m.load("x", i)))
        m.pointwise("x", (i,), const(0.0, DType.f32), i + shift)
        schedule = m.schedule("y")
        assert len(schedule.steps) == kernels
        x = torch.randn(8)
        before = x.clone()
        out = run(schedule, {"x": x})
        torch.testing.assert_close(out["y"], before[:7].exp())
        assert out["x"][shift : shift + 7].eq(0).all()


def test_what_is_written_twice_has_the_later_value() -> None:
    """A kernel stores what is the same for a row behind all loops over it."""

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x[0:1] = w.sum(1, keepdim=True)
        between = x[0:1] + 1
        x[0:1] = w * 2
        return between

    x, w = torch.randn(3, 6), torch.randn(1, 6)
    expected = x.clone()
    between = fn(expected, w)
    found = torch.compile(fn, backend="polyfuse", options={"backends": ("interpreter",)})(x, w)
    torch.testing.assert_close((found, x), (between, expected))


def test_the_axis_of_a_scan_stays_whole() -> None:
    m = Maker()
    m.buffer("x", 6, 8, kind="input")
    m.buffer("sums", 6, 8)
    m.buffer("rows", 12, 4)
    i, j = axes(6, 8)
    (k,), (r,) = axes(6), axes(8, prefix="r")
    m.nodes.append(Scan("scan", (k,), (r,), ("sums",), m.at("sums", k, r), "sum", (m.load("x", k, r),)))
    i, j = axes(12, 4)
    m.pointwise("rows", (i, j), load("x", i * 4 + j, DType.f32))
    schedule = m.schedule("sums", "rows")
    x = torch.randn(6, 8)
    out = run(schedule, {"x": x})
    torch.testing.assert_close(out["sums"], x.cumsum(1))
    torch.testing.assert_close(out["rows"], x.view(12, 4))


def test_a_value_that_a_loop_completes_is_not_read_inside_it() -> None:
    m = Maker()
    m.buffer("x", 4, 8, kind="input")
    m.buffer("total", 4)
    m.buffer("y", 4, 8)
    (i,), (r,) = axes(4), axes(8, prefix="r")
    m.reduce("total", (i,), (r,), "sum", m.load("x", i, r))
    i, j = axes(4, 8)
    m.pointwise("y", (i, j), apply("sub", m.load("x", i, j), m.load("total", i)))
    schedule = m.schedule("y")
    (step,) = schedule.steps
    looped = [s.looped for s in step.kernel.sections]
    assert looped.count(True) == 2, "the row is gone through twice"
    x = torch.randn(4, 8)
    torch.testing.assert_close(run(schedule, {"x": x})["y"], x - x.sum(1, keepdim=True))


def test_few_rows_keep_their_long_loops_apart() -> None:
    def graph(rows: int, columns: int) -> Maker:
        m = Maker()
        m.buffer("x", rows, columns, kind="input")
        m.buffer("total", rows)
        m.buffer("y", rows, columns)
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        m.reduce("total", (i,), (r,), "sum", m.load("x", i, r))
        i, j = axes(rows, columns)
        m.pointwise("y", (i, j), apply("sub", m.load("x", i, j), m.load("total", i)))
        return m

    assert len(graph(16, 10000).schedule("y").steps) == 1
    schedule = graph(2, 10000).schedule("y")
    assert len(schedule.steps) == 2
    assert "too few parallel points" in reasons(schedule)[0]


def test_long_columns_are_read_once_by_each_kernel() -> None:
    class Cached(Anything):
        """For a device whose caches hold strips of 64 KiB."""

        def target_info(self, device: str) -> TargetInfo:
            return TargetInfo(column_bytes=1 << 16)

    def graph(rows: int, columns: int) -> Maker:
        m = Maker(backend=Cached)
        m.buffer("x", rows, columns, kind="input")
        m.buffer("total", columns)
        m.buffer("y", rows, columns)
        (i,), (r,) = axes(columns), axes(rows, prefix="r")
        m.reduce("total", (i,), (r,), "sum", m.load("x", r, i))
        i, j = axes(rows, columns)
        m.pointwise("y", (i, j), apply("sub", m.load("x", i, j), m.load("total", j)))
        return m

    assert len(graph(100, 128).schedule("y").steps) == 1
    schedule = graph(1000, 128).schedule("y")
    assert len(schedule.steps) == 2
    assert "leave the caches" in reasons(schedule)[0]


class TestDiagnosis:
    """What a refusal says about the accesses that did not line up."""

    def refusal(self, size_a, index_a, size_b, index_b) -> str:
        m = Maker()
        m.buffer("x", 4096, kind="input")
        m.buffer("a", *size_a)
        m.buffer("b", *size_b)
        i = axes(*size_a)
        m.pointwise("a", i, apply("exp", load("x", index_a(*i), DType.f32)))
        i = axes(*size_b)
        m.pointwise("b", i, apply("neg", load("x", index_b(*i), DType.f32)))
        (reason,) = reasons(m.schedule("a", "b"))
        return reason

    def test_offset(self) -> None:
        assert "x: one starts at element 0, the other at 64" in self.refusal(
            (8, 8), lambda i, j: 24 * i + j, (8, 8), lambda i, j: 24 * i + j + 64
        )

    def test_count(self) -> None:
        assert "x: one accesses 64 elements, the other 32" in self.refusal(
            (64,), lambda i: i, (32,), lambda i: i
        )

    def test_broadcast(self) -> None:
        assert "x: broadcast: one makes 64 accesses, the other 512" in self.refusal(
            (64,), lambda i: i, (8, 64), lambda i, j: j
        )

    def test_strides(self) -> None:
        assert "x: strides (8, 1) against (16, 2)" in self.refusal(
            (8, 4), lambda i, j: 8 * i + j, (8, 4), lambda i, j: 16 * i + 2 * j
        )

    def test_not_linear(self) -> None:
        assert "x: one index is not linear in its loops" in self.refusal(
            (8, 4), lambda i, j: 4 * i + j, (8, 4), lambda i, j: (i * 3) % 8 * 4 + j
        )


def test_loop_order_alone_does_not_stop_a_fusion() -> None:
    m = Maker()
    m.buffer("x", 16, 24, kind="input")
    m.buffer("a", 16, 24)
    m.buffer("b", 24, 16, stride=(1, 24))
    i, j = axes(16, 24)
    m.pointwise("a", (i, j), apply("exp", m.load("x", i, j)))
    i, j = axes(24, 16)
    m.pointwise("b", (i, j), apply("neg", m.load("x", j, i)))
    assert len(m.schedule("a", "b").steps) == 1


@pytest.mark.parametrize(
    ("kind", "rows", "refused"),
    [("backward", 1 << 22, True), ("backward", 1 << 16, False), ("inference", 1 << 22, False)],
)
def test_rows_are_added_to_a_much_larger_table_after_what_made_them_is_gone(
    kind: str, rows: int, refused: bool
) -> None:
    """If they go: only a backward is handed inputs that nobody else holds."""
    count = 1 << 19
    m = Maker(kind=kind)
    for name in ("x", "y", "z"):
        m.buffer(name, count, kind="input")
    m.buffer("row", count)
    m.buffer("table", 16 * rows)
    (i,) = axes(count)
    m.pointwise("row", (i,), apply("add", apply("add", m.load("x", i), m.load("y", i)), m.load("z", i)))
    (i,) = axes(count)
    m.pointwise("table", (i,), m.load("row", i))
    reason = "it would keep what the first reads alive beside what the second writes, and save little"
    assert (reason in reasons(m.schedule("table"))) is refused


class DearStarts(Anything):
    """Starting a kernel takes as long as moving much memory."""

    def target_info(self, device: str) -> TargetInfo:
        return replace(super().target_info(device), launch_bytes=64 << 20)


@pytest.mark.parametrize("backend", [Anything, DearStarts])
def test_a_kernel_that_is_dear_to_start_is_saved_for_more_memory(backend: type[Anything]) -> None:
    weights, rows = 1 << 26, 1 << 20
    m = Maker(kind="backward", backend=backend)
    m.buffer("x", weights, kind="input")
    for name in ("sums", "more", "out"):
        m.buffer(name, rows, kind="input" if name == "more" else "temp")
    (i,), (r,) = axes(rows), axes(weights // rows, prefix="r")
    m.reduce("sums", (i,), (r,), "sum", load("x", i * (weights // rows) + r, DType.f32))
    m.pointwise("out", (i,), apply("add", m.load("sums", i), m.load("more", i)))
    assert len(m.schedule("out").steps) == (2 if backend is Anything else 1)


def test_a_sum_is_read_only_after_its_loop() -> None:
    """Reader and sum have the same iteration space: in one loop, it would read what is not complete."""
    m = Maker()
    m.buffer("x", 16, 8, kind="input")
    m.buffer("total", 16)
    m.buffer("again", 16)
    (i,), (r,) = axes(16), axes(8, prefix="r")
    m.reduce("total", (i,), (r,), "sum", m.load("x", i, r))
    m.reduce("again", (i,), (r,), "sum", apply("mul", m.load("x", i, r), m.load("total", i)))
    schedule = m.schedule("again")
    x = torch.randn(16, 8)
    wanted = (x * x.sum(1, keepdim=True)).sum(1)
    torch.testing.assert_close(run(schedule, {"x": x})["again"], wanted)


def test_buffers_that_share_storage_are_not_distinguished_by_their_names() -> None:
    """`v` is a view of `a`: to write `a` and read `v` in one kernel would need to know which part it is."""
    m, i = vectors(8, "x", "a v y")
    m.pointwise("a", (i,), apply("exp", m.load("x", i)))
    m.call("aten.alias.default", ("v",), "a", aliases=("a",))
    m.pointwise("y", (i,), apply("add", m.load("v", i), m.load("x", i)))
    m.pointwise("a", (i,), apply("neg", m.load("x", i)))
    schedule = m.schedule("y", "a")
    assert any(
        "a and v share storage" in reason or "v and a share storage" in reason for reason in reasons(schedule)
    )
    assert sum(isinstance(step, Launch) for step in schedule.steps) == 3


class TestHorizontalFusion:
    """Units that share no data have loops in common only if these run over equally much data; those that
    reduce must do the same.
    """

    @staticmethod
    def together(second: str, size: int = 8) -> list[int]:
        m = Maker()
        for k, (op, count) in enumerate((("exp", 8), (second, size))):
            m.buffer(f"x{k}", count, 4, kind="input")
            (i, j), (r,) = axes(count, 4), axes(4, prefix="r")
            if op == "sum":
                m.buffer(f"y{k}", count)
                m.reduce(f"y{k}", (i,), (r,), "sum", m.load(f"x{k}", i, r))
            else:
                m.buffer(f"y{k}", count, 4)
                m.pointwise(f"y{k}", (i, j), apply(op, m.load(f"x{k}", i, j)))
                # what is listed is what an operator was asked for, not what it came to
                m.nodes[-1] = replace(m.nodes[-1], origins=(Origin(f"aten.{op}.default", op),))
        return [len(step.nodes) for step in m.schedule("y0", "y1", horizontal_fusion=True).steps]

    def test_the_same(self) -> None:
        assert self.together("exp") == [2]

    def test_another_operator(self) -> None:
        assert self.together("sin") == [2]

    def test_a_reduction(self) -> None:
        assert self.together("sum") == [1, 1]

    def test_another_size(self) -> None:
        assert self.together("exp", 9) == [1, 1]


@pytest.mark.parametrize("gap", [1, 3])
def test_writers_whose_elements_take_turns_become_one(gap: int) -> None:
    """Lines of memory are then written once; elements that lie in lines of their own gain nothing."""
    m = Maker()
    m.buffer("o", 8, 3)
    for number in range(2):
        source = f"x{number}"
        m.buffer(source, 8, kind="input")
        (i,) = axes(8)
        m.pointwise("o", (i,), apply("exp" if number else "neg", m.load(source, i)), i, number)
    if gap == 3:
        m.nodes = [replace(m.nodes[0]), replace(m.nodes[1], index=axes(8)[0] * 1 + 16)]
        m.nodes[0] = replace(m.nodes[0], index=axes(8)[0] * 1)
    launches = [step for step in m.schedule("o").steps if isinstance(step, Launch)]
    assert len(launches) == (1 if gap == 1 else 2)
