"""The accelerator of `examples/accelerator`: built as a wheel, installed into an empty folder, and used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from house.source_tree import ROOT
from polyfuse.base.settings import child_environment
from requirements import GXX
from wheels import install

pytest.importorskip("hatchling", reason="builds wheels; part of the extra `dev`")
pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason=GXX)

EXAMPLE = ROOT / "examples" / "accelerator"
MOST_LINES = 1000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel was installed into, beside a copy of its tests."""
    folder = tmp_path_factory.mktemp("site")
    install(EXAMPLE, folder)
    shutil.copytree(EXAMPLE / "tests", folder / "tests")
    return folder


def run(site: Path, *command: str, seconds: int = 300) -> str:
    """The output of a Python command with the wheel installed."""
    return _succeed([sys.executable, *command], site, seconds)


def _succeed(command: Sequence[str], folder: Path, seconds: int = 300) -> str:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        command,
        env=child_environment(PYTHONPATH=path, POLYFUSE_CACHE_DIR=str(folder / "cache")),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_it_is_small() -> None:
    files = [path for path in (EXAMPLE / "polyfuse_sim").glob("*") if path.suffix in (".py", ".cpp")]
    assert len(files) == 8
    assert sum(len(path.read_text().splitlines()) for path in (*files, EXAMPLE / "use.py")) < MOST_LINES


# what docs/new-accelerator.md shows comes first
SMALL = (
    (EXAMPLE / "use.py").read_text(encoding="utf-8")
    + """
import json
import polyfuse
from polyfuse.plugin import device_of
from polyfuse.testing import check_device

x = torch.randn(6, 8)
call = torch.compile(lambda x: (x.softmax(-1) * 2).sum(0), backend="polyfuse", options={"strict": True})
torch.testing.assert_close(call(x.to("sim")).cpu(), (x.softmax(-1) * 2).sum(0))
print(json.dumps([type(device_of("sim")).__name__, polyfuse.metrics().kernels, dict(check_device("sim:1"))]))
"""
)


@pytest.mark.slow
def test_an_installed_wheel_is_all_that_it_takes(site: Path) -> None:
    name, kernels, checks = json.loads(run(site, "-c", SMALL).splitlines()[-1])
    assert name == "SimDevice" and kernels >= 1
    assert set(checks.values()) == {""} and len(checks) == 9


@pytest.mark.slow
def test_models_train_and_packages_run(site: Path) -> None:
    run(site, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/test_sim.py", seconds=900)


@pytest.mark.slow
def test_it_passes_the_kit(site: Path) -> None:
    out = run(site, "-m", "polyfuse", "conformance", "sim", "--device", "sim", "--quick", seconds=900)
    passed, refused, failed = map(int, re.findall(r"(\d+) (?:passed|refused|failed)", out.splitlines()[-1]))
    assert passed > 300 and not failed and refused < passed
