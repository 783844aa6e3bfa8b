"""What each plugin's launchers ask of the CUDA driver, call by call, against golden files."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from driver_calls import SCENARIOS, build_driver
from polyfuse.base.settings import child_environment
from requirements import HALIDE, needs_gcc

pytestmark = needs_gcc


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    build_driver(folder)
    return folder


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SCENARIOS)
def test_calls(name, driver, golden):
    if name.startswith("halide") and find_spec("halide") is None:
        pytest.skip(HALIDE)
    tests = Path(__file__).parents[2]
    path = os.pathsep.join((str(tests), os.environ.get("PYTHONPATH", "")))
    env = child_environment(LD_LIBRARY_PATH=str(driver), PYTHONPATH=path)
    command = [sys.executable, str(tests / "driver_calls.py"), name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    golden(f"cuda/{name}.txt", done.stdout)
