"""Layers of one and of few rows, compiled with Triton where it is interpreted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    """Projections of a normalised row, and a gated product of the sum of both, normalised again."""

    def __init__(self, width: int, dtype: torch.dtype, norm: type[nn.Module]) -> None:
        super().__init__()
        sizes = {"q": (width, 256), "k": (width, 384), "o": (256, width), "gate": (width, 256)}
        sizes |= {"up": (width, 256), "down": (256, width)}
        for name, (a, b) in sizes.items():
            setattr(self, name, nn.Linear(a, b, bias=False))
        self.norm, self.norm2 = norm(width), norm(width)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(x)
        q, k = self.q(y), self.k(y)
        x = x + self.o(torch.tanh(q).flip(-1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), k


def faults(width: int, dtype: str, norm: str) -> tuple[list[str], list[str]]:
    """What is wrong with the layer, and the texts of its kernels; runs where Triton interprets."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    model = Layer(width, kind, getattr(nn, norm))
    wrong, texts, report = _compared(model, torch.randn(1, width).to(kind))
    if report.calls or report.kernels != 5:
        wrong.append(f"{report.kernels} launches and the calls {report.calls} instead of 5 launches")
    return wrong, texts


class Projections(nn.Module):
    """Some linear layers of one operand."""

    def __init__(self, depth: int, columns: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(depth, n, bias=False) for n in columns)
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layer(x) for layer in self.layers)


def projection_faults(columns: Sequence[int], rows: int) -> tuple[list[str], list[str]]:
    """What is wrong with projections of a few rows, and the texts of their kernels; runs where Triton
    interprets.
    """
    seed = random.randrange(1 << 30)
    torch.manual_seed(seed)
    wrong, texts, report = _compared(Projections(512, columns), torch.randn(rows, 512).bfloat16())
    if report.calls:
        wrong.append(f"the calls {report.calls}")
    return [f"{text} (seed {seed})" for text in wrong], texts


class Gate(nn.Module):
    """Two linear layers and what is made of both: `kind` says what the second one reads."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        wide = 256 if kind == "chain" else 300
        self.gate, self.up = nn.Linear(256, wide, bias=False), nn.Linear(256, wide, bias=False)
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one, other = x.chunk(2)
        gate = self.gate(one)
        up = self.up({"chain": gate, "other rows": other}.get(self.kind, one))
        found = F.silu(gate) * up
        return (found, gate) if self.kind == "both stored" else (found,)


def gate_faults(kind: str, rows: int) -> tuple[list[str], list[str]]:
    """What is wrong with a gate of few rows, and the texts of its kernels; runs where Triton interprets."""
    seed = random.randrange(1 << 30)
    torch.manual_seed(seed)
    wrong, texts, report = _compared(Gate(kind), torch.randn(2 * rows, 256).bfloat16())
    if report.calls:
        wrong.append(f"the calls {report.calls}")
    return [f"{text} (seed {seed})" for text in wrong], texts


def _compared(model: nn.Module, x: torch.Tensor) -> tuple[list[str], list[str], Any]:
    """Which results are further from the truth than eager mode's, the texts of kernels, and the report."""
    from polyfuse.compiler.reports.report import last_reports, reset_reports
    from triton_interpreted import InterpretedTriton, offer

    offer()
    torch._dynamo.reset()
    reset_reports()
    texts: list[str] = []
    emit = InterpretedTriton.emit

    def noting(self: Any, kernel: Any, config: Any = None) -> Any:
        found = emit(self, kernel, config)
        texts.append(found.text)
        return found

    InterpretedTriton.emit = noting  # type: ignore[method-assign]
    try:
        with torch.no_grad():
            options = {"backends": "interpreted", "graph_cache": False}
            found = torch.compile(model, backend="polyfuse", options=options)(x)
            eager = model(x)
            truth = model.double()(x.double())
    finally:
        InterpretedTriton.emit = emit  # type: ignore[method-assign]
    wrong = []
    for number, (got, plain, wanted) in enumerate(zip(found, eager, truth, strict=True)):
        off, usual = (float((t.double() - wanted).norm() / wanted.norm()) for t in (got, plain))
        if off > 1.5 * usual + 1e-6:
            wrong.append(f"result {number}: off by {off}, where eager mode is by {usual}")
    (report,) = last_reports()
    return wrong, texts, report
