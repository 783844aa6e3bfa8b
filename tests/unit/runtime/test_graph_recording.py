"""What becomes of the inputs and results of a recording that is not all on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fake_graphs import FakeDevice
from polyfuse.base.errors import UnsupportedError
from polyfuse.runtime.graph_memory import GraphMemory
from polyfuse.runtime.graph_recording import GraphFacts, Recording, make_recording, treat


def recorded(facts: GraphFacts, memory: GraphMemory, results: list[Any]) -> Recording:
    """A recording of a program that gives these results, for no inputs."""
    treatment = treat(facts, [], memory, [])
    return make_recording(lambda args: tuple(results), facts, memory, [], treatment, (), lambda slot: False)


def test_a_seed_on_the_processor_is_constant_and_read_where_it_is() -> None:
    # to this recording, the processor is another device
    facts = GraphFacts("meta", saved=(0,))
    memory = GraphMemory(FakeDevice())
    (seed,) = recorded(facts, memory, [torch.tensor(7)]).constants
    assert isinstance(seed, torch.Tensor)
    backward = GraphFacts("meta", varying=(0,), carried=(0,))
    assert treat(backward, [seed], memory, []).fixed == [0]
    other = treat(backward, [torch.tensor(7)], memory, [])
    assert other.refused


def test_another_input_on_the_processor_is_a_reason_not_to_record() -> None:
    facts = GraphFacts("meta", varying=(0,))
    found = treat(facts, [torch.zeros(3)], GraphMemory(FakeDevice()), [])
    assert found.refused == "input 0 is on cpu"


def test_a_result_on_the_processor_is_a_reason_not_to_record() -> None:
    with pytest.raises(UnsupportedError, match="result 0 is on cpu"):
        recorded(GraphFacts("meta"), GraphMemory(FakeDevice()), [torch.zeros(3)])
