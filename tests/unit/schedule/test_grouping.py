"""Launches that depend on none of each other become parts of one kernel."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from polyfuse.base.errors import VerifyError
from polyfuse.ir.expr import apply
from polyfuse.ir.nodes import Scatter
from polyfuse.ir.text.parse import parse_kernel
from polyfuse.ir.text.print import text
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.kit.roofline import work_of
from polyfuse.plugin import Claim, TargetInfo, Yes
from polyfuse.schedule import Launch, Schedule
from polyfuse.symbolic import axis
from schedule_builder import Anything, Maker, axes, reasons, run


class Grouping(Anything):
    """Generates kernels of several parts, it says."""

    def may_group(self, kernel) -> Claim:
        return Yes()


def entries(sizes: list[int], consumer: bool = False) -> tuple[Maker, list[str]]:
    """A list operator on tensors of these sizes; the first result may be used once more."""
    m, names = Maker(backend=Grouping), []
    for k, n in enumerate(sizes):
        m.buffer(f"x{k}", n, kind="input")
        m.buffer(f"y{k}", n)
        (i,) = axes(n)
        m.pointwise(f"y{k}", (i,), apply("exp", m.load(f"x{k}", i)))
        names.append(f"y{k}")
    if consumer:
        m.buffer("z", sizes[0])
        (i,) = axes(sizes[0])
        m.pointwise("z", (i,), apply("sin", m.load("y0", i)))
        names.append("z")
    return m, names


def launched(schedule: Schedule) -> list[int]:
    """How many parts each launch has."""
    return [max(1, len(step.kernel.parts)) for step in schedule.steps if isinstance(step, Launch)]


def test_entries_of_any_size_are_one_launch() -> None:
    sizes = [3, 8, 5, 8, 1]
    m, names = entries(sizes)
    schedule = m.schedule(*names, horizontal_fusion=True)
    assert len(launched(schedule)) == 1
    assert any("parts of one kernel" in reason for reason in reasons(schedule, "group"))
    inputs = {f"x{k}": torch.randn(n) for k, n in enumerate(sizes)}
    found = run(schedule, inputs)
    for k, name in enumerate(names):
        torch.testing.assert_close(found[name], inputs[f"x{k}"].exp())


def test_a_few_are_left_alone_where_launches_cost_little() -> None:
    m, names = entries([3, 4, 5, 6, 7, 8, 9])
    assert launched(m.schedule(*names)) == [1] * 7
    m, names = entries([3, 4, 5, 6, 7, 8, 9, 10])
    assert launched(m.schedule(*names)) == [8]


def test_a_thousand_results_are_few_launches() -> None:
    m, names = entries([4 + k % 7 for k in range(1000)])
    assert launched(m.schedule(*names)) == [1000]


def test_an_entry_with_a_consumer_shares_the_kernel_of_its_list() -> None:
    m, names = entries([8, 8, 8], consumer=True)
    schedule = m.schedule(*names, horizontal_fusion=True)
    (step,) = schedule.steps
    assert isinstance(step, Launch) and not step.kernel.parts and len(step.nodes) == 4


def test_what_depends_on_another_comes_in_a_later_launch() -> None:
    m = Maker(backend=Grouping)
    for k, n in enumerate((4, 6)):
        m.buffer(f"x{k}", n, n, kind="input")
        m.buffer(f"sum{k}", n)
        m.buffer(f"y{k}", n, n)
        (i,), (r,) = axes(n), axes(n, prefix="r")
        m.reduce(f"sum{k}", (i,), (r,), "sum", m.load(f"x{k}", i, r))
        i, j = axes(n, n)
        m.pointwise(f"y{k}", (i, j), apply("mul", m.load(f"x{k}", i, j), m.load(f"sum{k}", 0)))
    schedule = m.schedule("y0", "y1", horizontal_fusion=True)
    assert launched(schedule) == [2, 2]
    inputs = {f"x{k}": torch.randn(n, n) for k, n in enumerate((4, 6))}
    found = run(schedule, inputs)
    for k in range(2):
        x = inputs[f"x{k}"]
        torch.testing.assert_close(found[f"y{k}"], x * x.sum(1)[0])


def test_a_call_in_between_keeps_its_position() -> None:
    m, _ = entries([3, 5])
    m.buffer("c", 3)
    m.call("aten.sin.default", ("c",), "y0")
    for k, n in ((7, 3), (8, 6)):
        m.buffer(f"x{k}", n, kind="input")
        m.buffer(f"y{k}", n)
        (i,) = axes(n)
        m.pointwise(f"y{k}", (i,), apply("exp", m.load(f"x{k}" if k == 8 else "c", i)))
    schedule = m.schedule("y0", "y1", "y7", "y8", horizontal_fusion=True)
    kinds = [isinstance(step, Launch) for step in schedule.steps]
    assert sorted(kinds) == [False, True, True]


class Costly(Grouping):
    """Where a launch takes the time of 4 KiB."""

    def target_info(self, device: str) -> TargetInfo:
        return dataclasses.replace(super().target_info(device), launch_bytes=1 << 12)


def multiplied(columns: int, rows: int = 4) -> Maker:
    """Two matmuls and a loop that read one matrix of some rows."""
    m, depth = Maker(backend=Costly), 32
    m.buffer("x", rows, depth, kind="input")
    (i, j), (r,) = axes(rows, columns), axes(depth, prefix="r")
    for k in range(2):
        m.buffer(f"w{k}", columns, depth, kind="input")
        m.buffer(f"y{k}", rows, columns)
        m.reduce(f"y{k}", (i, j), (r,), "dot", m.load("x", i, r), m.load(f"w{k}", j, r))
    m.buffer("z", rows, depth)
    i, j = axes(rows, depth)
    m.pointwise("z", (i, j), apply("sin", m.load("x", i, j)))
    return m


@pytest.mark.parametrize(
    "columns, rows, parts",
    [(100, 4, [2, 1]), (600, 4, [1, 1, 1]), (100, 400, [1, 1, 1])],
    ids=["few rows", "a large weight", "many rows"],
)
def test_matmuls_with_few_rows_are_one_launch(columns: int, rows: int, parts: list[int]) -> None:
    """Beside loops, which have programs of their own."""
    schedule = multiplied(columns, rows).schedule("y0", "y1", "z", max_fusion_size=1)
    assert sorted(launched(schedule), reverse=True) == parts
    given = {name: torch.randn(n, 32) for name, n in (("x", rows), ("w0", columns), ("w1", columns))}
    found = run(schedule, given)
    for k in range(2):
        torch.testing.assert_close(found[f"y{k}"], given["x"] @ given[f"w{k}"].t())


def test_at_most_four_matmuls_are_one_launch() -> None:
    m, depth = Maker(backend=Costly), 32
    m.buffer("x", 4, depth, kind="input")
    for k in range(6):
        (i, j), (r,) = axes(4, 50), axes(depth, prefix="r")
        m.buffer(f"w{k}", 50, depth, kind="input")
        m.buffer(f"y{k}", 4, 50)
        m.reduce(f"y{k}", (i, j), (r,), "dot", m.load("x", i, r), m.load(f"w{k}", j, r))
    assert launched(m.schedule(*(f"y{k}" for k in range(6)), max_fusion_size=1)) == [4, 2]


def test_what_is_stored_into_a_large_buffer_is_a_part_of_any_launch() -> None:
    """Where it is stored depends on data, as in a cache; the loop is as short as the other one."""
    m = Maker(backend=Costly)
    m.buffer("cache", 1 << 14, kind="input")
    m.buffer("at", 1, dtype=DType.i64, kind="input")
    for k, n in enumerate((8, 6)):
        m.buffer(f"x{k}", n, kind="input")
    (i,), (j,) = axes(8), axes(6)
    stored = Scatter("s", (i,), (), "cache", axis("@0", 100) + i, (m.load("at", 0),), m.load("x0", i))
    m.nodes.append(stored)
    m.buffer("y", 6)
    m.pointwise("y", (j,), apply("exp", m.load("x1", j)))
    assert launched(m.schedule("cache", "y")) == [2]


class TestKernel:
    """A kernel of parts is a kernel: it has a text, rules and work."""

    def test_text_reads_back(self) -> None:
        kernel = self.kernel()
        assert parse_kernel(text(kernel)) == kernel
        assert work_of(kernel).operations == 3 + 8 + 5

    @staticmethod
    def kernel():
        m, names = entries([3, 8, 5])
        (step,) = m.schedule(*names, horizontal_fusion=True).steps
        return step.kernel

    def test_rules(self) -> None:
        kernel = self.kernel()
        verify_kernel(kernel)
        first, *rest = kernel.parts
        wrong = {
            "is not what the whole declares": dataclasses.replace(first, args=("out0", "in0")),
            "two parts write": dataclasses.replace(first, args=("in0", "out1")),
            "has parts itself": dataclasses.replace(first, kernel=kernel),
            "another number of arguments": dataclasses.replace(first, args=("in0",)),
        }
        for words, part in wrong.items():
            with pytest.raises(VerifyError, match=words):
                verify_kernel(dataclasses.replace(kernel, parts=(part, *rest)))
        with pytest.raises(VerifyError, match="no loops of its own"):
            verify_kernel(dataclasses.replace(kernel, axes=axes(4)))
