"""Series of launches in one call, on devices made of host memory, whose driver runs functions of the host."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import fake_device
from fake_blas import FakeBlas

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(fake_device.unavailable()), reason=fake_device.unavailable()),
]
CASES = ["results", "training", "matmuls", "sizes", "errors", "no_memory", "tensors", "profiler", "threads"]
CASES.append("off")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every case gave, from one process."""
    driver = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(fake_device.__file__).with_name("fake_driver.c")
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-shared", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(driver), "-ldl", "-lpthread"], check=True)
    blas = str(FakeBlas(tmp_path_factory.mktemp("blas")).path)
    found: dict[str, Any] = fake_device.run("fake_device.series:every_case", str(driver), blas, CASES)
    return found


@pytest.fixture
def answer(answers: dict[str, Any], request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the case of a parametrised test gave; no memory ever stays allocated."""
    found: dict[str, Any] = answers[request.param]
    assert "failed" not in found, found["failed"]
    assert found["taken"] == 0
    assert all(found["series"]) and bool(found["series"]) == (request.param != "off")
    return found


def case(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("answer", [name], indirect=True)


@case("results")
def test_results_are_those_of_eager_mode(answer: dict[str, Any]) -> None:
    assert answer["launches"] == 4


@case("training")
def test_gradients(answer: dict[str, Any]) -> None:
    assert len(answer["series"]) >= 2


@case("matmuls")
def test_a_librarys_matmuls_are_called_without_torch(answer: dict[str, Any]) -> None:
    # a forward and a backward of four layers
    assert answer["matmuls"] == 4 * 3
    assert answer["calls"][-1] == 4 * 3 and answer["calls"][0] == 0


@case("sizes")
def test_a_size_that_a_kernel_refuses_is_launched_kernel_by_kernel(answer: dict[str, Any]) -> None:
    assert answer["graphs"] == 1


@case("errors")
def test_a_failed_launch_names_the_kernel_and_its_lines(answer: dict[str, Any]) -> None:
    assert "kernel fused_softmax could not be launched: invalid argument" in answer["said"]
    assert answer["said"].count("The compiled program was running aten._softmax.default at") == 1


@case("no_memory")
def test_without_memory_it_ends_in_torchs_error_and_works_again(answer: dict[str, Any]) -> None:
    assert answer["ended"] == 4


@case("tensors")
def test_only_results_are_tensors(answer: dict[str, Any]) -> None:
    assert answer["tensors"] == answer["results"] == 3


@case("profiler")
def test_the_profiler_sees_each_kernel(answer: dict[str, Any]) -> None:
    assert answer["kernels"] == 4


@case("threads")
def test_threads_share_a_series(answer: dict[str, Any]) -> None:
    assert answer["wrong"] == []


@case("off")
def test_the_option_turns_it_off(answer: dict[str, Any]) -> None:
    assert answer["series"] == []
