"""What another process traced is not used where anything differs that decides what it means."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from polyfuse.base.settings import child_environment

pytestmark = pytest.mark.slow

FAR = """
import torch

def far(v):
    return v.sin()

class FarModule(torch.nn.Module):
    def forward(self, v):
        return v.sin()
"""

NEAR = """
import torch

import capture_far
from capture_far import FarModule

OTHER = False

def called(v):
    return v.sin()

def calls_far(v):
    return capture_far.far(v)

def replaced(v):
    return v.tan()

def with_default(v, other=False):
    return v.cos() if other else v.tan()

class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        return v.sin()

    @staticmethod
    def backward(ctx, g):
        return g
"""

PARTS = """
from capture_middle import Edited, Middle

class Child(Edited):
    pass

class Unedited(Middle):
    pass
"""

MIDDLE = """
from capture_root import Root

class Middle(Root):
    pass

class Edited(Root):
    same = True
"""

ROOT = """
import torch

class Root(torch.nn.Module):
    def forward(self, v):
        return v.tan()
"""

SOURCES = {"far": FAR, "near": NEAR, "parts": PARTS, "middle": MIDDLE, "root": ROOT}

EDITS = {
    "sin()": "cos()",
    "OTHER = False": "OTHER = True",
    "other=False": "other=True",
    "same = True": "forward = lambda self, v: v.cos()",
}

SCRIPT = """
import json, sys
from capture_cases import outcomes
print(json.dumps(list(outcomes(sys.argv[1] == "changed"))))
"""

Outcomes = dict[str, dict[str, Any]]


def process(folder: Path, variant: str) -> Outcomes:
    """What becomes of each case in a process whose sources are as they were, or changed."""
    for name, text in SOURCES.items():
        for old, new in EDITS.items() if variant == "changed" else ():
            text = text.replace(old, new)
        path = folder / f"capture_{name}.py"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    time.sleep(0.01)  # files that change after a process began are not trusted
    environment = child_environment(
        PYTHONPATH=f"{folder}:{Path(__file__).parent}:{Path(__file__).parent.parent}",
        PYTHONDONTWRITEBYTECODE="1",
        POLYFUSE_CACHE_DIR=str(folder / "cache"),
        POLYFUSE_CAPTURE_CACHE="1",
        POLYFUSE_GRAPH_CACHE="1",
    )
    # forked ones would share addresses, and the order of sets, with their parent
    command = [sys.executable, "-c", SCRIPT, variant]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return {row["name"]: row for row in json.loads(ended.stdout.splitlines()[-1])}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcomes, Outcomes, Outcomes]:
    """A first process, one in which every case changed, and one that is as the first was."""
    folder = tmp_path_factory.mktemp("captures")
    first, changed, again = (process(folder, variant) for variant in ("first", "changed", "again"))
    return first, changed, again


def test_no_result_is_wrong(processes):
    assert not [row for outcomes in processes for row in outcomes.values() if row["error"]]


def test_what_changed_is_traced(processes):
    _, changed, _ = processes
    assert not [name for name, row in changed.items() if row["captured"]]


def test_what_did_not_change_is_found(processes):
    *_, again = processes
    assert not [name for name, row in again.items() if not row["captured"]]
