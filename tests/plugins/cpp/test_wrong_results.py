"""Convolutions of bf16 that the library computes wrongly on CPUs with matrix registers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import polyfuse
from requirements import needs_amx


def spoil() -> None:
    """Leave large numbers in the memory that is allocated next."""
    for size in (64, 256, 1024, 4096, 20000, 300000):
        torch.full((size,), 1e30)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())


WIDE_WINDOWS = {
    "packed columns": (lambda: nn.Conv2d(16, 8, 4, stride=4), (28, 28)),
    "volume, one column": (lambda: nn.Conv3d(16, 32, 3, stride=(2, 2, 4)), (5, 9, 3)),
    "gradient, transposed from one column": (lambda: nn.ConvTranspose2d(32, 16, 3, stride=3), (6, 1)),
    "gradient of a volume": (lambda: nn.Conv3d(16, 32, 2, stride=3), (12, 12, 30)),
}
OTHERS = {
    "packed columns of a line": (lambda: nn.Conv1d(8, 8, 8), (15,)),
    "groups": (lambda: nn.Conv2d(16, 64, (3, 8), groups=2), (8, 12)),
    "few channels": (lambda: nn.Conv3d(3, 16, (3, 2, 2), padding=(1, 0, 0)), (1, 7, 30)),
    "transposed volume": (
        lambda: nn.ConvTranspose3d(8, 1, 2, stride=2, output_padding=(1, 0, 0)),
        (5, 2, 30),
    ),
    "gradient, line": (lambda: nn.ConvTranspose1d(32, 8, 8, stride=3, padding=4), (8,)),
    "taps of the margin alone": (lambda: nn.Conv2d(16, 32, 3, padding=1), (5, 1)),
    "taps of the margin alone, line": (lambda: nn.Conv1d(8, 16, 4, stride=2, padding=2), (1,)),
}


def chosen() -> list[Any]:
    slow = [pytest.param(*case, id=name, marks=pytest.mark.slow) for name, case in OTHERS.items()]
    return [pytest.param(*case, id=name) for name, case in WIDE_WINDOWS.items()] + slow


@needs_amx
@pytest.mark.parametrize("made, size", chosen())
def test_results_and_gradients(made: Any, size: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer = made().bfloat16()
    exact = made().double()
    exact.load_state_dict(layer.state_dict())
    torch.compiler.reset()
    run = torch.compile(layer, backend="polyfuse", dynamic=False, options={"strict": True})
    for _ in range(2):
        x = torch.randn(2, layer.in_channels, *size).bfloat16().requires_grad_()
        wide = x.detach().double().requires_grad_()
        spoil()
        found, expected = run(x), exact(wide)
        weight = torch.randn_like(found)
        layer.zero_grad()
        exact.zero_grad()
        spoil()
        found.backward(weight)
        expected.backward(weight.double())
        assert found.dtype is torch.bfloat16
        pairs = [(found, expected), (x.grad, wide.grad)]
        pairs += [(p.grad, q.grad) for p, q in zip(layer.parameters(), exact.parameters(), strict=True)]
        for given, wanted in pairs:
            assert error(given, wanted) < 0.02


@needs_amx
def test_odd_numbers_of_channels_stay_in_sixteen_bits() -> None:
    """The library gets windows right that fill registers with an odd number of channels."""
    torch.compiler.reset()
    layer = nn.Conv2d(3, 8, (4, 32), stride=(4, 1)).bfloat16().requires_grad_(False)
    report = str(polyfuse.explain(layer)(torch.randn(2, 3, 16, 40).bfloat16()))
    assert "fused_dot" in report and "0 library calls" in report
