"""Compile functions so that their work is recorded on a device, and look at what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports
from polyfuse.runtime.graphs.status import GraphStatus


def compiled(fn: Callable[..., Any], *, dynamic: bool | None = False, **options: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(
        fn, backend="polyfuse", dynamic=dynamic, options={"device_graphs": True, **options}
    )
    return made


def status(kind: str = "") -> GraphStatus:
    found = [r.recording for r in last_reports() if kind in ("", r.kind)][-1]
    assert found is not None, [r.eager for r in last_reports()]
    return found


def same(actual: object, expected: object) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def affine(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).softmax(-1) + 1


def inputs(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 128, device="cuda"), torch.randn(128, 128, device="cuda")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256),
            nn.LayerNorm(256),
            nn.GELU(),
            nn.Linear(256, 256),
            nn.Tanh(),
            nn.Linear(256, 16),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()
