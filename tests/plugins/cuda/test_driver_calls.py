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
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each scenario called; a scenario that failed has no file, and said why."""
    driver, found = tmp_path_factory.mktemp("driver"), tmp_path_factory.mktemp("calls")
    build_driver(driver)
    tests = Path(__file__).parents[2]
    path = os.pathsep.join((str(tests), os.environ.get("PYTHONPATH", "")))
    env = child_environment(LD_LIBRARY_PATH=str(driver), PYTHONPATH=path)
    names = [name for name in SCENARIOS if not name.startswith("halide") or find_spec("halide")]
    command = [sys.executable, str(tests / "driver_calls.py"), str(found), *names]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    (found / "errors").write_text(done.stderr)
    return found


@pytest.mark.parametrize("name", SCENARIOS)
def test_calls(name, calls, golden):
    if name.startswith("halide") and find_spec("halide") is None:
        pytest.skip(HALIDE)
    assert (calls / name).exists(), (calls / "errors").read_text()
    golden(f"cuda/{name}.txt", (calls / name).read_text())
