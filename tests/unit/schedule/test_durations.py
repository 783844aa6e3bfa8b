"""Guesses of how long units and collectives take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from polyfuse.ir.expr import apply
from polyfuse.ir.nodes import Collective, ExternCall
from polyfuse.plugin import TargetInfo
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks import estimates
from polyfuse.runtime.ranks.costs import (
    KINDS,
    CollectiveCosts,
    forget_costs,
    restored_costs,
    use_costs,
)
from polyfuse.schedule.fusion.units import Unit, UnitSpaces, call_unit, loop_unit
from polyfuse.schedule.overlap.communication import communication_seconds, computing_seconds
from polyfuse.symbolic import IndexLike
from polyfuse.torch_compat.groups import Group
from schedule_builder import Maker, axes, gathered

MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def no_costs() -> Iterator[None]:
    with restored_costs():
        forget_costs()
        yield


def number(index: IndexLike) -> int:
    assert isinstance(index, int)
    return index


def seconds(m: Maker, unit: Unit, target_info: TargetInfo) -> float:
    return computing_seconds(unit, m.graph(), target_info, number)


def test_an_addition_takes_as_long_as_its_three_buffers() -> None:
    m = Maker()
    i = axes(512, 512)
    for name in "xyz":
        m.buffer(name, 512, 512)
    m.pointwise("z", i, apply("add", m.load("x", *i), m.load("y", *i)))
    (node,) = m.nodes
    unit = loop_unit(node, 0, "anything", "cpu", UnitSpaces())
    found = seconds(m, unit, TargetInfo(bandwidth=1e6)) - seconds(m, unit, TargetInfo(bandwidth=1e12))
    assert found == pytest.approx(3 * MEGABYTE / 1e6, rel=1e-3)


@pytest.mark.parametrize(
    ("op", "sizes", "result", "work"),
    (
        ("aten.mm.out", ((64, 32), (32, 16)), (64, 16), 2 * 64 * 16 * 32),
        ("aten.bmm.out", ((3, 64, 32), (3, 32, 16)), (3, 64, 16), 2 * 3 * 64 * 16 * 32),
        ("aten.addmm.out", ((16,), (64, 32), (32, 16)), (64, 16), 2 * 64 * 16 * 32),
        ("aten.convolution.default", ((1, 4, 8, 8), (6, 4, 3, 3)), (1, 6, 6, 6), 2 * 216 * 36),
        ("aten.sort.values", ((64, 32),), (64, 32), 0),
    ),
)
def test_matmuls_take_longer_than_what_they_move(
    op: str, sizes: tuple[tuple[int, ...], ...], result: tuple[int, ...], work: int
) -> None:
    m = Maker()
    names = [m.buffer(f"x{k}", *size) for k, size in enumerate(sizes)]
    m.call(op, (m.buffer("y", *result),), *names, out="out")
    unit = call_unit(m.nodes[0], 0)
    fast, slow = (seconds(m, unit, TargetInfo(bandwidth=1e30, operations=rate)) for rate in (1e30, 1.0))
    assert slow - fast == pytest.approx(work)
    assert seconds(m, unit, TargetInfo(bandwidth=1.0, operations=1.0)) > 100.0


def test_collectives_of_a_group_on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Maker()
    m.buffer("x", 512, 512, kind="input")
    m.start("x")
    (node,) = m.nodes
    assert isinstance(node, Collective)
    away = communication_seconds(node, m.graph(), "cpu", 0.0, number)
    monkeypatch.setattr(estimates, "group_of", lambda name: Group(name, (2, 3), None, None))
    many = communication_seconds(node, m.graph(), "cpu", 0.0, number)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    near = communication_seconds(node, m.graph(), "cpu", 0.0, number)
    assert away > many > near


def test_collectives() -> None:
    m = Maker()
    m.buffer("x", 512, 512, kind="input")
    m.buffer("g", 1024, 512)
    m.start("x")
    m.start("g", source="x")
    times = []
    for node in m.nodes:
        assert isinstance(node, Collective) and isinstance(node, ExternCall)
        times.append(communication_seconds(node, m.graph(), "cpu", 1e6, number))
    latency = 20e-6
    assert times == [pytest.approx(latency + 2 * MEGABYTE / 1e6)] * 2, "a sum goes around twice"
    m.buffer("e", 0)
    m.start("e")
    assert communication_seconds(m.nodes[2], m.graph(), "cpu", 1e6, number) == latency


def test_what_was_measured_comes_before_what_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    m = Maker()
    m.buffer("x", 512, 512, kind="input")
    m.start("x")
    (node,) = m.nodes
    assert isinstance(node, Collective)

    class Known(Group):
        def library(self, device_type: str) -> str:
            return "gloo"

    monkeypatch.setattr(estimates, "group_of", lambda name: Known(name, (2, 3), None, None))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    rows = dict.fromkeys(KINDS, ((1 << 10, 1.0), (1 << 20, 7.0)))
    use_costs([CollectiveCosts("gloo", device_of("cpu").facts(), 2, True, rows)])
    assert communication_seconds(node, m.graph(), "cpu", 0.0, number) == 7.0
    assert communication_seconds(node, m.graph(), "cpu", 1e6, number) < 7.0, "the user's word counts"


@pytest.mark.parametrize(("op", "free"), [("exchange", True), ("operand", True), ("all_reduce", False)])
def test_what_is_read_where_it_lies_is_no_message(op: str, free: bool) -> None:
    m = gathered()
    start = next(n for n in m.nodes if isinstance(n, Collective))
    node = replace(start, op=f"polyfuse_symmetric.{op}.default")
    assert (communication_seconds(node, m.graph(), "cpu", 1e6, number) == 0.0) is free
