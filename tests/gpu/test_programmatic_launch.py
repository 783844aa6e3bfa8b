"""What kernels write is there for those that started while they ran, and is not overwritten too early.

On the CPU, tests/plugins/triton/test_dependent_launch.py and test_launcher.py check code and launches.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.gpu
SECONDS = 240
"""A test that autotunes builds in workers, beside the tests of other processes."""

Function = Callable[..., torch.Tensor]


def rows_and_columns(x: torch.Tensor) -> torch.Tensor:
    """Each kernel needs all that the one before it wrote."""
    for turn in range(9):
        x = (x + 1) / (x + 1).sum(turn % 2, keepdim=True)
    return x


def in_place(x: torch.Tensor) -> torch.Tensor:
    """Kernels write what the one before them reads."""
    x = x.clone()
    for turn in range(6):
        total = x.amax(turn % 2, keepdim=True)
        x.mul_(0.5).add_(total)
    return x


def products(x: torch.Tensor) -> torch.Tensor:
    """A library's kernels between those that were generated."""
    for _ in range(4):
        x = torch.tanh(x @ x.mT / x.shape[1] ** 0.5).mul(2)
    return x


@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune-no-cudagraphs"])
@pytest.mark.parametrize("function", [rows_and_columns, in_place, products])
def test_results_are_those_of_eager_mode_every_time(function: Function, mode: str | None) -> None:
    torch.manual_seed(0)
    run = torch.compile(function, backend="polyfuse", mode=mode)
    x = torch.rand(768, 768, device="cuda")
    expected = function(x.double()).float()
    with torch.no_grad():
        first = run(x).clone()
        torch.testing.assert_close(first, expected, rtol=2e-2, atol=2e-2)
        for _ in range(100):
            # something of another kind right before, that a kernel which does not wait would overtake
            y = torch.empty_like(x).copy_(x)
            torch.testing.assert_close(run(y), first, rtol=1e-4, atol=1e-4)


def test_on_two_streams_that_wait_for_each_other() -> None:
    run = torch.compile(rows_and_columns, backend="polyfuse")
    x = torch.rand(512, 512, device="cuda")
    with torch.no_grad():
        expected = run(run(x))
        side = torch.cuda.Stream()
        for _ in range(50):
            y = run(x)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                z = run(y)
            torch.cuda.current_stream().wait_stream(side)
            y.record_stream(side)
            torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-4)
