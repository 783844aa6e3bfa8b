"""Models for tests of ahead-of-time packages, and processes that load these without a compiler."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch._higher_order_ops.while_loop import while_loop
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


class Halving(torch.nn.Module):
    """A loop in a branch, with weights and a buffer that the functions read."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("row", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def halved(x: torch.Tensor) -> torch.Tensor:
            start = torch.zeros((), dtype=torch.int64, device=x.device)
            step = lambda i, x: (i + 1, self.linear(x) * 0.5 + self.row)  # noqa: E731
            return while_loop(lambda i, x: (i < 3) & (x.sum() < 1000), step, (start, x))[1]

        return torch.cond(x.sum() > 0, halved, lambda x: x.softmax(-1) * self.row, (x,)) * 2

    def wanted(self, x: torch.Tensor) -> torch.Tensor:
        """The same in Python alone: eager mode would trace the functions at each call."""
        if x.sum() <= 0:
            return x.softmax(-1) * self.row * 2
        for _ in range(3):
            if x.sum() < 1000:
                x = self.linear(x) * 0.5 + self.row
        return x * 2


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
