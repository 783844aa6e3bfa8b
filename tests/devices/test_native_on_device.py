"""Packages that compute on a device without Python: its memory is the host's, and its driver runs functions
of the host as kernels.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import fake_device
from native_runner import NativeResult, call

pytestmark = pytest.mark.skipif(bool(fake_device.unavailable()), reason=fake_device.unavailable())

Run = Callable[..., tuple[list[NativeResult], dict[str, int]]]


@dataclass(frozen=True)
class Packaged:
    """Packages by name, and a folder with the driver."""

    paths: dict[str, str]
    folder: Path
    driver: Path

    def read(self, name: str, what: str) -> Any:
        """What the model was called with, or what it returned."""
        return torch.load(self.folder / f"{name}.{what}")

    def run(self, name: str, calls: Any, **options: Any) -> tuple[list[NativeResult], dict[str, int]]:
        """Results of the library, and what the driver counted."""
        log = self.folder / "log.json"
        variables = {
            "LD_LIBRARY_PATH": str(self.driver),
            "FAKE_LOG": str(log),
            **options.pop("variables", {}),
        }
        found = call(Path(self.paths[name]), calls, given=True, variables=variables, **options)
        return found, json.loads(log.read_text())


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory, answers: dict[str, Any]) -> Packaged:
    paths = answers["native_packages"]
    assert "failed" not in paths, paths["failed"]
    driver = tmp_path_factory.mktemp("driver")
    source = Path(fake_device.__file__).with_name("fake_driver.c")
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-shared", "-fPIC", str(source)]
    subprocess.run([*command, "-o", str(driver / "libcuda.so.1"), "-ldl", "-lpthread"], check=True)
    return Packaged(paths, Path(answers["packages"]), driver)


def check(found: NativeResult, expected: list[Any]) -> None:
    assert not found.error, found.error
    assert len(found.results) == len(expected)
    for actual, wanted in zip(found.results, expected, strict=True):
        assert actual is not None
        wanted = wanted if isinstance(wanted, torch.Tensor) else torch.tensor(wanted)
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)


def test_results_and_memory(packaged: Packaged) -> None:
    calls, expected = packaged.read("block", "inputs"), packaged.read("block", "results")
    found, counts = packaged.run("block", calls)
    for actual, wanted in zip(found, expected, strict=True):
        check(actual, wanted)
    assert counts["left"] == 0 and counts["contexts"] == 0 and counts["loaded"] == 0
    assert counts["launches"] and counts["waits"]


@pytest.mark.slow
def test_sorted_rows(packaged: Packaged) -> None:
    calls, expected = packaged.read("sorting", "inputs"), packaged.read("sorting", "results")
    found, counts = packaged.run("sorting", calls)
    for actual, wanted in zip(found, expected, strict=True):
        assert not actual.error, actual.error
        for position, (number, right) in enumerate(zip(actual.results, wanted, strict=True)):
            assert number is not None
            if position != 5:
                torch.testing.assert_close(number, right, rtol=0, atol=0, equal_nan=True)
            else:
                # eager mode is free to take any of equal numbers
                assert number[0].unique().numel() == 7
    assert counts["left"] == 0


def test_threads_share_a_model(packaged: Packaged) -> None:
    calls, expected = packaged.read("block", "inputs"), packaged.read("block", "results")
    found, counts = packaged.run("block", calls[:1], threads=4)
    check(found[0], expected[0])
    assert counts["left"] == 0


@pytest.mark.slow
def test_buffers_and_arguments_are_written_to(packaged: Packaged) -> None:
    """Both are the CPU's, so the library copies them there and back."""
    ((x, total),), (wanted,) = packaged.read("counting", "inputs"), packaged.read("counting", "results")
    found, counts = packaged.run("counting", [(x, total)])
    # the model counts its calls, and the runner calls once to learn sizes
    assert not found[0].error
    assert found[0].results[0] is not None
    torch.testing.assert_close(found[0].results[0], x * 2)
    torch.testing.assert_close(found[0].inputs[1], total + x + x)
    assert counts["left"] == 0
    assert len(wanted) == 2


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"FAKE_CHIP": "75"}, "has no code for a GPU of compute capability 7.5"),
        ({"FAKE_BYTES": "16000"}, "memory for intermediate values could not be had"),
        ({"LD_LIBRARY_PATH": "/nowhere"}, "the driver of the GPU cannot be opened"),
    ],
    ids=["chip", "memory", "driver"],
)
def test_what_cannot_be_says_why(packaged: Packaged, variables: dict[str, str], error: str) -> None:
    calls = packaged.read("block", "inputs")
    with pytest.raises(AssertionError, match=error):
        found, _ = packaged.run("block", calls[:1], variables=variables)
        # creating a model fails with the process, a call by its answer
        raise AssertionError(found[0].error)


def test_code_of_an_older_chip_runs_on_a_newer_one_of_its_kind(packaged: Packaged) -> None:
    calls, expected = packaged.read("block", "inputs"), packaged.read("block", "results")
    found, _ = packaged.run("block", calls[:1], variables={"FAKE_CHIP": "86"})
    check(found[0], expected[0])
