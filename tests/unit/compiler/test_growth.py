"""The work of compiling a deep network grows as its depth does, not as the square."""

from __future__ import annotations

import cProfile
from pathlib import Path
from types import CodeType

import pytest
import torch
from torch import nn

import polyfuse

pytestmark = pytest.mark.usefixtures("interpreted_kernels")

_OURS = str(Path(polyfuse.__file__).parent)


class _Layer(nn.Module):
    """Projections that follow each other, a sum that outlives several of them, and a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(self.norm(x))))


def _calls(depth: int, training: bool) -> int:
    """Calls of our functions until a first answer is there."""
    torch._dynamo.reset()
    network = nn.Sequential(*(_Layer(16) for _ in range(depth)))
    options = {"repeated_layers": "off", "graph_cache": False}
    compiled = torch.compile(network, backend="polyfuse", options=options)
    x, profile = torch.randn(8, 16), cProfile.Profile()
    with profile, torch.set_grad_enabled(training):
        result = compiled(x)
        if training:
            result.square().sum().backward()
    return sum(one.callcount for one in profile.getstats() if _is_ours(one.code))


def _is_ours(code: object) -> bool:
    return isinstance(code, CodeType) and code.co_filename.startswith(_OURS)


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_layer_takes_as_many_calls_as_the_one_before(training: bool) -> None:
    _calls(1, training)  # what a process does once
    # what others left is tidied up in one or another, now and then
    assert any(_grows_alike(training) for _ in range(3))


def _grows_alike(training: bool) -> bool:
    two, three, four = (_calls(depth, training) for depth in (2, 3, 4))
    assert two > 1000  # they are counted
    return four - three < (three - two) * 1.03
