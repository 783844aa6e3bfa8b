"""One process with fake devices for all tests here: it takes seconds until torch has compiled in it first."""

from __future__ import annotations

from typing import Any

import pytest

import fake_device

OPERATORS = ["softmax", "sort"]
CASES = [
    ["training_step", "cuda:1"],
    ["number_of_the_processor", "cuda:0"],
    ["copies"],
    ["two_devices_training"],
    ["exchanges", "cuda:0"],
    ["odd_addresses", "cuda:0"],
    ["memory", "cuda:1"],
    ["sizes_known_when_called", "cuda:0"],
    ["random_numbers", "cuda:0"],
    ["optimizer", "cuda:0"],
    ["side_stream", "cuda:0"],
    ["without_memory", "cuda:1"],
    ["operators", "cuda:0", OPERATORS],
]


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What every case gave that a test of this run asks for. The last one, which brings a plugin of its own,
    packages models into a folder: all of them where slow tests run.
    """
    folder = str(tmp_path_factory.mktemp("packages"))
    given = [
        item.callspec.params.get("answer") for item in request.session.items if hasattr(item, "callspec")
    ]
    asked = {answer for answer in given if isinstance(answer, str)}  # tests elsewhere give other things
    models = ["block"]
    if any(item.get_closest_marker("slow") for item in request.session.items):
        models += ["sorting", "counting"]
    # code of its packages names libraries in the cache, which must outlive the process
    found: dict[str, Any] = fake_device.run(
        "fake_device.cases:every_case",
        [
            *(case for case in CASES if " ".join(map(str, case[:2])) in asked),
            ["native_packages", folder, models],
        ],
        POLYFUSE_CACHE_DIR=f"{folder}/cache",
    )
    return {**found, "packages": folder}
