"""Programs that the device cannot record as a whole: what waits for it stays out, the rest is recorded."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from obstacle import around, layers
from recorded_on_device import compiled, same, status

pytestmark = pytest.mark.gpu


@torch.library.custom_op("polyfuse_gpu_tests::waiting", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def waiting(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x * 3


waiting.register_fake(torch.empty_like)


@torch.library.custom_op("polyfuse_gpu_tests::silent", mutates_args=())
def silent(x: torch.Tensor) -> torch.Tensor:
    """Waits for the device without saying so."""
    return x * (2 if any((x.sum(-1) > 0).tolist()) else 3)


silent.register_fake(torch.empty_like)


def unknown(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    middle: torch.Tensor = silent(layers(x, w))
    return layers(middle, w)


def detour(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """By way of the CPU."""
    return layers(layers(x, w).cpu().mul(2).cuda(), w)


def branching(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    middle: torch.Tensor = waiting(layers(x, w))
    return layers(middle, w)


@pytest.mark.parametrize("fn", [around, detour, branching, unknown])
def test_what_is_around_is_recorded(fn: Callable[..., torch.Tensor]) -> None:
    run = compiled(fn)
    held = []
    for number in range(10):
        x, w = torch.randn(64, 32, device="cuda"), torch.randn(32, 32, device="cuda") / 6
        result, expected = run(x, w), fn(x, w)
        same(result, expected)
        if number % 3 == 2:
            held.append((result, expected))
        del result
    for result, expected in held:
        same(result, expected)
    found = status()
    assert len(found.partitions) == 2 and all(part.replays >= 4 for part in found.partitions), found.text()


def test_training() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(32, 32), nn.Linear(32, 8)
            self.w = nn.Parameter(torch.randn(32, 32) / 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(around(torch.tanh(self.into(x)), self.w)).square().mean()

    model = Net().cuda()
    reference = copy.deepcopy(model)
    run = compiled(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (model, reference)]
    for _ in range(8):
        x = torch.randn(64, 32, device="cuda")
        for function, optimizer in zip((run, reference), optimizers, strict=True):
            optimizer.zero_grad()
            function(x).backward()
            optimizer.step()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            same(mine, theirs)
            same(mine.grad, theirs.grad)
    assert all(part.replays >= 4 for part in status("forward").partitions), status("forward").text()
    assert status("backward").replays >= 4, status("backward").text()
