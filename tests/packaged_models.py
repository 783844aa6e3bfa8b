"""Models for tests of ahead-of-time packages, and processes that load these without a compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram, export

from polyfuse.base.settings import child_environment

BATCH = {"min": 2, "max": 64}


class Mixed(torch.nn.Module):
    """Parameters, buffers, a mutated argument, and results that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor, scale: int = 3) -> dict[str, Any]:
        self.calls.add_(1)
        y.mul_(2)
        z = torch.nn.functional.gelu(self.norm(self.linear(x))).softmax(-1) * scale
        return {"z": z, "all": (y.sum(), [x.shape[0], None]), "y": y}


def mixed(seed: int = 0) -> Mixed:
    """The model with certain weights."""
    torch.manual_seed(seed)
    return Mixed().eval()


def exported(model: torch.nn.Module) -> ExportedProgram:
    """`Mixed` with a batch of any size."""
    shapes = {"x": {0: Dim("batch", **BATCH)}, "y": None, "scale": None}
    return export(model, (torch.randn(4, 8), torch.randn(6)), {"scale": 3}, dynamic_shapes=shapes)


def in_a_process(script: str, *arguments: str, **environment: str) -> Any:
    """Run a script in a process that finds no program, and return what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**child_environment(), "PATH": "/nowhere", **environment},
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
