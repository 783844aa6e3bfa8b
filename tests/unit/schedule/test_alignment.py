"""Which buffers start where an allocation does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polyfuse.ir.nodes import Collective
from polyfuse.schedule.kernels.alignment import aligned_buffers
from schedule_builder import gathered

OURS = "polyfuse_symmetric.exchange.default"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),  # a functional collective makes its result, complete or not
        ({"op": OURS, "aliases": ("g",)}, True),  # memory that others know as well
        ({"aliases": ("a",)}, False),  # what is received may be a part of something
        ({"op": "user.gather.default"}, False),
    ],
)
def test_results_of_collectives(changes: dict[str, Any], expected: bool) -> None:
    m = gathered()
    m.wait("g", "a")
    graph = m.graph("g")
    nodes = tuple(replace(n, **changes) if isinstance(n, Collective) else n for n in graph.nodes)
    graph = replace(graph, nodes=nodes)
    for checked in (True, False):
        assert ("g" in aligned_buffers(graph, checked)) is expected
