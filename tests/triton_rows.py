"""A layer of one row, compiled with Triton where it is interpreted."""

from __future__ import annotations

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
    from polyfuse.compiler.reports.report import last_reports, reset_reports
    from triton_interpreted import InterpretedTriton, offer

    offer()
    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(0)
    texts: list[str] = []
    emit = InterpretedTriton.emit

    def noting(self: Any, kernel: Any, config: Any = None) -> Any:
        found = emit(self, kernel, config)
        texts.append(found.text)
        return found

    model = Layer(width, getattr(torch, dtype), getattr(nn, norm))
    x = torch.randn(1, width).to(getattr(torch, dtype))
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
    for name, got, plain, wanted in zip(("result", "k"), found, eager, truth, strict=True):
        off, usual = (float((t.double() - wanted).norm() / wanted.norm()) for t in (got, plain))
        if off > 1.5 * usual + 1e-6:
            wrong.append(f"{name}: off by {off}, where eager mode is by {usual}")
    (report,) = last_reports()
    if report.calls or report.kernels != 5:
        wrong.append(f"{report.kernels} launches and the calls {report.calls} instead of 5 launches")
    return wrong, texts
