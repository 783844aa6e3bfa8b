"""Sizes that follow from others by arithmetic which only the host does: roots, fractions, rounding up."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from models import checks
from polyfuse.compiler.reports.report import last_reports, reset_reports


def blocks(x: torch.Tensor) -> torch.Tensor:
    count = math.ceil(x.shape[0] / 4)
    return F.pad(x, (0, 0, 0, count * 4 - x.shape[0])).view(count, 4, -1).softmax(1).sum(0)


def half(x: torch.Tensor) -> torch.Tensor:
    return x[: int(x.shape[0] * 0.5)] * 2 + x.sum(0)


def square(x: torch.Tensor) -> torch.Tensor:
    side = int(math.sqrt(x.shape[0]))
    return x[: side * side].view(side, side, -1).transpose(0, 1).cumsum(1)


def enlarged(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x.detach()[None, None], scale_factor=(1.5, 2.5), mode="bilinear") * 2 + x.sum()


def made(x: torch.Tensor) -> torch.Tensor:
    count = math.ceil(x.shape[0] / 4)
    return torch.cat([x.new_zeros(count, x.shape[1]) + x[0, 0], x.exp()])


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "interpreter"])
@pytest.mark.parametrize("function", [blocks, half, square, enlarged, made])
def test_kernels_of_computed_sizes(function: Callable[[torch.Tensor], torch.Tensor], backend: str) -> None:
    reset_reports()
    options = {"backends": [backend], "graph_cache": False, "strict": True}
    compiled = torch.compile(function, backend="polyfuse", dynamic=True, options=options)
    for rows in (9, 16, 35):
        x = torch.randn(rows, 5, requires_grad=True)
        twin = x.detach().clone().requires_grad_()
        found, expected = compiled(twin), function(x)
        checks.assert_close([found], [expected], "output")
        for result in (found, expected):
            (result * torch.linspace(0.5, 1.5, result.numel()).view(result.shape)).sum().backward()
        assert twin.grad is not None and x.grad is not None
        checks.assert_close([twin.grad], [x.grad], "gradient")
    reports = last_reports()
    assert reports and all(report.kernels and not report.eager for report in reports)
