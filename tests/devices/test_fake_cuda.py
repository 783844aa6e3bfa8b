"""The whole way of CUDA tensors, from capture to results, on devices made of host memory."""

from __future__ import annotations

from typing import Any

import pytest

import fake_device

pytestmark = pytest.mark.skipif(bool(fake_device.unavailable()), reason=fake_device.unavailable())


@pytest.fixture
def answer(answers: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What one case gave."""
    found: dict[str, Any] = answers[request.param]
    assert "failed" not in found, found["failed"]
    return found


def case(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("answer", names, indirect=True)


@case("training_step cuda:1")
def test_training_leaves_the_current_device_alone(
    answer: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    assert answer["device"] in request.node.name
    assert answer["current"] == [0, 0]
    assert answer["kernels"] and not answer["eager"]


@case("number_of_the_processor cuda:0")
def test_numbers_of_the_processor_are_passed_without_waiting(answer: dict[str, Any]) -> None:
    assert answer == {"devices": ["cuda:0"] * 3, "waited": 0, "graphs": 1}


@case("copies")
def test_tensors_move_between_devices(answer: dict[str, Any]) -> None:
    assert answer["kernels"] and not answer["eager"]


@case("two_devices_training")
def test_a_model_on_two_devices_trains(answer: dict[str, Any]) -> None:
    assert not answer["eager"]


@case("exchanges cuda:0")
def test_two_processes_exchange_what_they_add_up(answer: dict[str, Any]) -> None:
    assert answer["rewrites"]["symmetric-sums"] == 2
    # of each call, one for each sum, and one before the first
    assert answer["barriers"] == 3 * 3
    assert answer["kernels"] == 2, "each sum is added up in the kernel that reads it"


@case("odd_addresses cuda:0")
def test_tensors_at_odd_addresses(answer: dict[str, Any]) -> None:
    assert answer == {"graphs": 1, "eager": []}


@case("memory cuda:1")
def test_a_chain_needs_two_tensors_on_its_own_device(answer: dict[str, Any]) -> None:
    assert answer["made"] == [0, 2]


@case("sizes_known_when_called cuda:0")
def test_one_graph_for_all_sizes(answer: dict[str, Any]) -> None:
    assert answer["graphs"] == 1


@case("random_numbers cuda:0")
def test_random_numbers(answer: dict[str, Any]) -> None:
    assert 0.4 < answer["share"] < 0.6 and answer["values"] == [0.0, 2.0]


@pytest.mark.slow
@case("optimizer cuda:0")
def test_optimizer_steps(answer: dict[str, Any]) -> None:
    assert not answer["eager"]


@case("side_stream cuda:0")
def test_the_stream_of_the_caller_is_used(answer: dict[str, Any]) -> None:
    assert answer["streams"] == [0, 1, 0]


@case("without_memory cuda:1")
def test_without_memory_it_ends_in_torchs_error_and_works_again(answer: dict[str, Any]) -> None:
    assert answer["ended"] >= 3
    assert not answer["eager"] and answer["launches"] == ["interpreter"]


@pytest.mark.slow
@case("operators cuda:0")
def test_operators_of_the_database(answer: dict[str, Any]) -> None:
    names = {name.partition(".")[0] for name in answer}
    assert names == {"softmax", "sort"} and set(answer.values()) == {"agree"}
