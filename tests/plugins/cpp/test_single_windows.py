"""Convolutions of bf16 whose results are one number wide: the library leaves some of them unwritten."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.compiler.reports.report import last_reports, reset_reports
from requirements import needs_amx


def spoil() -> None:
    """Leave large numbers in the memory that is allocated next."""
    for size in (64, 256, 1024, 4096, 20000, 300000):
        torch.full((size,), 1e30)


def check(layer: nn.Module, x: torch.Tensor, count: int, training: bool, **options: Any) -> None:
    """Right beside float64, with so many convolutions that were rewritten."""
    layer = layer.bfloat16().requires_grad_(training)
    exact = copy.deepcopy(layer).double()
    torch.compiler.reset()
    reset_reports()
    chosen = {"graph_cache": False, "strict": True, **options}
    run = torch.compile(layer, backend="polyfuse", dynamic=False, options=chosen)
    for _ in range(2):
        spoil()
        found, expected = run(x), exact(x.double())
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)
    assert found.stride() == torch.compile(layer, backend="aot_eager")(x).stride()
    if training and not any(layer.padding):  # the gradient where a tap meets nothing is the library's
        weight = torch.randn_like(found)
        found.backward(weight)
        expected.backward(weight.double())
        for given, wanted in zip(layer.parameters(), exact.parameters(), strict=True):
            assert given.grad is not None and wanted.grad is not None
            assert (given.grad.double() - wanted.grad).norm() <= 1e-2 * wanted.grad.norm()
    assert sum(dict(report.rewrites).get("cpp.single-windows", 0) for report in last_reports()) == count


@needs_amx
@pytest.mark.quick(1)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "layer, size",
    [
        (lambda: nn.Conv2d(3, 8, 8, stride=8), (56, 8)),
        (lambda: nn.Conv2d(16, 32, 3, stride=2, padding=1), (30, 2)),
        (lambda: nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), (30, 1)),
        (lambda: nn.Conv2d(3, 8, 3, stride=3, dilation=2), (40, 7)),
        (lambda: nn.Conv2d(3, 8, 5, stride=(2, 6), padding=(1, 3), dilation=(1, 2)), (40, 7)),
        (lambda: nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=2), (30, 2)),
        (lambda: nn.Conv2d(8, 8, (1, 8)), (12, 8)),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_results_one_number_wide(layer: Any, size: tuple[int, ...], last: bool, training: bool) -> None:
    made = layer()
    x = torch.randn(2, made.in_channels, *size).bfloat16()
    if last and len(size) == 2:
        made, x = made.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    check(made, x, 1, training)


@needs_amx
@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "layer, size",
    [
        (nn.Conv2d(3, 8, 3, stride=2), (31, 5)),
        (nn.Conv2d(3, 8, (3, 1), stride=2), (31, 1)),
        (nn.Conv2d(3, 8, 8, stride=8), (8, 8)),
        (nn.Conv2d(3, 8, 1, stride=2, padding=(0, 1)), (31, 1)),
    ],
)
def test_others_stay_as_they_are(layer: nn.Module, size: tuple[int, ...]) -> None:
    check(layer, torch.randn(2, 3, *size).bfloat16(), 0, True)
