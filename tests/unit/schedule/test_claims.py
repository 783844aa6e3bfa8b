"""Who generates each loop is decided before scheduling."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply
from polyfuse.ir.nodes import Reduction
from polyfuse.plugin import Claim, Device, Limits, No, Yes
from polyfuse.plugin.session.guarded_backend import guard
from polyfuse.runtime.devices.registry import use_device
from polyfuse.schedule import Claims, claim_nodes
from polyfuse.schedule.schedule import schedule_graph
from schedule_builder import Anything, Maker, axes, scheduled
from wide_device import WIDE

SETTINGS = Settings.resolve(None, {})


class NoSine(Anything):
    name = "no_sine"

    def claims(self, node) -> Claim:
        return No("it has no sine") if node.value.op == "sin" else Yes()


class Raising(Anything):
    name = "raising"

    def claims(self, node) -> Claim:
        raise ValueError("lost")


def three(*ops: str) -> Maker:
    """A loop for each operator, all of one input."""
    m = Maker()
    m.buffer("x", 8, kind="input")
    (i,) = axes(8)
    for op in ops:
        m.pointwise(m.buffer(op, 8), (i,), apply(op, m.load("x", i)))
    return m


def unheard(*fault: object) -> None:
    """What is reported of a fault."""


def claimed(m: Maker, *backends: type[Anything], strict: bool = False) -> Claims:
    settings = replace(SETTINGS, strict=strict)
    ops = [name for name in m.buffers if name != "x"]
    guarded = [guard(b(settings), unheard) for b in backends]
    return claim_nodes(m.graph(*ops), lambda device: guarded, settings)


def test_a_refusal_costs_no_other_loop_its_backend() -> None:
    claims = claimed(three("exp", "sin", "cos"), NoSine)
    assert {name: backend.name for name, backend in claims.backends.items()} == {
        "n0": "no_sine",
        "n2": "no_sine",
    }
    (refusal,) = claims.refused
    assert refusal.node.name == "n1" and refusal.reason == "no_sine: it has no sine" and refusal.asked


def test_the_next_backend_has_what_the_first_refuses() -> None:
    claims = claimed(three("exp", "sin"), NoSine, Anything)
    assert not claims.refused
    assert [claims.backends[n].name for n in ("n0", "n1")] == ["no_sine", "anything"]
    assert [(d.kind, d.first, d.second) for d in claims.decisions] == [("backend", "no_sine", "n1")]


def test_without_a_backend_nobody_is_asked() -> None:
    (refusal,) = claimed(three("exp")).refused
    assert refusal.reason == "none is installed for cpu" and not refusal.asked
    for option, names in (("backends", ("triton",)), ("disable", ("cpp", "halide"))):
        claims = claim_nodes(
            three("exp").graph("exp"), lambda device: [], replace(SETTINGS, **{option: names})
        )
        assert f"the option `{option}`" in claims.refused[0].reason


def test_a_backend_that_raises_claims_nothing() -> None:
    assert claimed(three("exp"), Raising, Anything).backends["n0"].name == "anything"
    with pytest.raises(ValueError, match="lost"):
        claimed(three("exp"), Raising, strict=True)


def test_for_what_has_no_effect_nobody_is_asked() -> None:
    m = three("exp", "sin")
    claims = claim_nodes(m.graph("exp"), lambda device: [NoSine(SETTINGS)], SETTINGS)
    assert [node.name for node in claims.graph.nodes] == ["n0"] and not claims.refused
    assert [(d.kind, d.first) for d in claims.decisions] == [("remove", "n1")]


def test_a_graph_with_refused_loops_has_no_schedule_of_its_own() -> None:
    m = three("exp", "sin")
    with pytest.raises(UnsupportedError, match="no backend generates code for n1"):
        scheduled(m.graph("exp", "sin"), SETTINGS, lambda device: [NoSine(SETTINGS)])


class WholeSums(Anything):
    """Like a wide device, but it refuses to combine what partial sums left."""

    name = "whole_sums"
    refused = ("_final",)

    def claims(self, node) -> Claim:
        return No("it combines nothing") if node.name.endswith(self.refused) else Yes()

    def target_info(self, device: str):
        return WIDE


class Willing(WholeSums):
    refused = ("no name ends so",)


@pytest.mark.parametrize(("backend", "nodes"), [(WholeSums, 1), (Willing, 2)])
def test_a_reduction_stays_whole_whose_backend_refuses_a_part(backend: type[WholeSums], nodes: int) -> None:
    m = Maker()
    m.buffer("x", 1 << 14, kind="input")
    m.buffer("y", 1)
    (i,), (r,) = axes(1), axes(1 << 14, prefix="r")
    m.reduce("y", (i,), (r,), "sum", m.load("x", r))
    made = backend(SETTINGS)
    schedule = schedule_graph(m.graph("y"), SETTINGS, lambda device: [made], {"n0": made})
    assert len(schedule.graph.nodes) == nodes
    assert all(isinstance(node, Reduction) for node in schedule.graph.nodes)
    assert ("y" in schedule.graph.buffers) and len(schedule.graph.buffers) == 1 + nodes


class Limited(Device):
    """The host, without wide numbers or large buffers."""

    def limits(self) -> Limits:
        return Limits(missing=frozenset({torch.float32}), most_elements=4)


class Few(Device):
    def limits(self) -> Limits:
        return Limits(most_elements=4)


@pytest.mark.parametrize(
    ("device", "reason"),
    [(Limited, "has no float32"), (Few, "reaches 4 elements of a buffer, and one has 8")],
)
def test_what_is_beyond_a_device_is_asked_of_nobody(device: type[Device], reason: str) -> None:
    use_device("cpu", device("cpu"))
    try:
        claims = claimed(three("exp"), Raising, strict=True)
    finally:
        use_device("cpu", None)
    (refusal,) = claims.refused
    assert refusal.reason == f"the device cpu {reason}" and refusal.asked and not claims.backends
