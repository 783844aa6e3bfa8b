"""What becomes of the inputs and results of a recording that is not all on one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fake_graphs import FakeDevice
from polyfuse.base.errors import UnsupportedError
from polyfuse.runtime.graphs import memory as graph_memory
from polyfuse.runtime.graphs.copied import CopiedResults
from polyfuse.runtime.graphs.inputs import GraphFacts, plan_inputs
from polyfuse.runtime.graphs.memory import GraphMemory
from polyfuse.runtime.graphs.recording import Recording, make_recording
from polyfuse.torch_compat.devices.device_graphs import same_addresses, storage_at


def recorded(facts: GraphFacts, memory: GraphMemory, results: list[Any]) -> Recording:
    """A recording of a program that gives these results, for no inputs."""
    plan = plan_inputs(facts, [], memory, [])
    return make_recording(lambda args: tuple(results), facts, memory, [], plan, (), CopiedResults())


def test_a_seed_on_the_processor_is_constant_and_read_where_it_is() -> None:
    # to this recording, the CPU is another device
    facts = GraphFacts("meta", saved=(0,))
    memory = GraphMemory(FakeDevice())
    (seed,) = recorded(facts, memory, [torch.tensor(7)]).constants
    assert isinstance(seed, torch.Tensor)
    backward = GraphFacts("meta", varying=(0,), carried=(0,))
    assert plan_inputs(backward, [seed], memory, []).fixed == [0]
    other = plan_inputs(backward, [torch.tensor(7)], memory, [])
    assert other.refused


def test_addresses_stand_where_the_tensors_do() -> None:
    """As in the function that builds of torch for devices have for this."""
    args: list[Any] = [7, torch.zeros(1), torch.ones(1), torch.ones(2)]
    addresses = [None, None, args[2].data_ptr(), args[3].data_ptr()]
    assert same_addresses(args, addresses, [2, 3])
    assert same_addresses(args, addresses, [])
    args[2] = torch.ones(1)
    assert not same_addresses(args, addresses, [2, 3])
    assert same_addresses(args, addresses, [3])


def test_a_parameter_that_is_gone_is_not_taken_for_what_is_at_its_address() -> None:
    memory = GraphMemory(FakeDevice())
    room = torch.zeros(4)

    def at_the_address() -> torch.Tensor:
        storage = storage_at(room.data_ptr(), 16, room.device)
        return torch.empty(0).set_(storage, 0, (4,), (1,))

    parameter = at_the_address()
    plan_inputs(GraphFacts("cpu", fixed=(0,)), [parameter], memory, [])
    varying = GraphFacts("cpu", varying=(0,))
    assert plan_inputs(varying, [parameter.detach()], memory, []).fixed == [0]
    assert plan_inputs(varying, [at_the_address()], memory, []).copied == (0,)
    del parameter
    assert plan_inputs(varying, [at_the_address()], memory, []).copied == (0,)


def test_what_is_known_of_parameters_that_are_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_memory, "_MANY_STATIC", 3)
    memory = GraphMemory(FakeDevice())
    static = [torch.zeros(1) for _ in range(4)]
    for tensor in static:
        memory.stays(tensor)
    for size in range(2, 40):
        memory.stays(torch.zeros(size * 100))
    assert all(memory.is_static(tensor) for tensor in static)
    assert len(memory._static) < 12


def test_another_input_on_the_processor_is_a_reason_not_to_record() -> None:
    facts = GraphFacts("meta", varying=(0,))
    found = plan_inputs(facts, [torch.zeros(3)], GraphMemory(FakeDevice()), [])
    assert found.refused == "input 0 is on cpu"


def test_a_result_on_the_processor_is_a_reason_not_to_record() -> None:
    with pytest.raises(UnsupportedError, match="result 0 is on cpu"):
        recorded(GraphFacts("meta"), GraphMemory(FakeDevice()), [torch.zeros(3)])
