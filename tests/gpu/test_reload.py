"""A later process finds what an earlier one built, and needs no compiler to run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polyfuse.base.settings import child_environment
from polyfuse.cache.artifacts import CONTENTS

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys, torch
age, kind = sys.argv[1:]
if age == "later":
    sys.modules["triton"] = None  # an import of it is an error
from torch.nn.functional import cross_entropy, layer_norm
from polyfuse.compiler.reports.report import last_reports
def loss(x, w, y):
    return cross_entropy(layer_norm(torch.relu(x @ w), (64,)) * 2, y) + x.sin().sum(0).max()
x = torch.randn(256, 64, device="cuda", requires_grad=True)
w = torch.randn(64, 64, device="cuda", requires_grad=True)
y = torch.randint(0, 64, (256,), device="cuda")
options = {"strict": True, "device_graphs": kind == "recorded"}
run = torch.compile(loss, backend="polyfuse", options=options)
expected = torch.autograd.grad(loss(x, w, y), (x, w))
for _ in range(3):
    torch.testing.assert_close(torch.autograd.grad(run(x, w, y), (x, w)), expected, rtol=1e-3, atol=1e-4)
launches = [launch.backend for report in last_reports() for launch in report.launches]
assert launches and set(launches) == {"triton"}, launches
"""


def run(folder: Path, *words: str) -> None:
    env = child_environment(POLYFUSE_CACHE_DIR=str(folder), POLYFUSE_BUILD_WORKERS="4")
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def built(folder: Path) -> dict[str, int]:
    """The files of all kernels, and when they were written, but lists (written again by use)."""
    files = [path for path in (folder / "kernels").rglob("*") if path.is_file() and path.name != CONTENTS]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


def test_stored_kernels_need_no_triton(tmp_path: Path) -> None:
    run(tmp_path, "first", "plain")
    first = built(tmp_path)
    assert any(name.endswith(".cubin") for name in first)
    run(tmp_path, "later", "plain")
    run(tmp_path, "later", "recorded")
    assert built(tmp_path) == first
