"""The examples of packages run: one in two processes, and one of experts that data choose."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from house.source_tree import ROOT
from polyfuse.base.settings import child_environment

pytestmark = pytest.mark.slow


def test_the_example_runs(tmp_path):
    for what in ("make", "run"):
        command = [sys.executable, str(ROOT / "examples" / "package.py"), what, str(tmp_path / "model.pf")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=child_environment())
        assert done.returncode == 0, done.stderr[-2000:]
    assert "compilers in memory: []" in done.stdout
    differences = re.findall(r"at most ([\d.e+-]+)", done.stdout)
    assert len(differences) == 3 and all(float(text) < 1e-4 for text in differences)


def test_a_mixture_of_experts(tmp_path):
    pytest.importorskip("transformers")
    command = [sys.executable, str(ROOT / "examples" / "package_experts.py"), str(tmp_path / "experts.pf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=child_environment())
    assert done.returncode == 0, done.stderr[-2000:]
    assert "agrees with eager mode" in done.stdout
