"""Convolutions of inputs whose sizes vary: one graph, whatever eager mode would choose by a size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfuse.torch_compat.captures.shortcuts import chosen_by_hints

BATCHES = [(n, 3, 12, 12) for n in (8, 2, 15, 16, 40)]
IMAGES = [(1, 3, n, n + 7) for n in (20, 64, 90)]
"""Below and above 20480 numbers."""


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8, stride=2),
        nn.Conv2d(8, 4, 1),
        nn.ConvTranspose2d(4, 4, 2, stride=2),
    )


@pytest.mark.quick(3)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("sizes", "dims"), [(BATCHES, [0]), (IMAGES, [2, 3])], ids=["batches", "images"])
def test_one_graph(
    sizes: Sequence[tuple[int, ...]], dims: list[int], gradients: bool, layout: torch.memory_format
) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = network().to(memory_format=layout)
    compiled = torch.compile(model, backend="polyfuse")
    with torch._dynamo.config.patch(error_on_recompile=True), torch.set_grad_enabled(gradients):
        for size in sizes:
            x = torch.randn(size).contiguous(memory_format=layout).requires_grad_(gradients)
            for dim in dims:
                torch._dynamo.mark_dynamic(x, dim)
            found, wanted = compiled(x), model(x.detach())
            torch.testing.assert_close(found, wanted)
            assert found.stride() == wanted.stride()
            if gradients:
                found.square().mean().backward()
                again = x.detach().requires_grad_()
                model(again).square().mean().backward()
                torch.testing.assert_close(x.grad, again.grad)


def test_torch_is_asked_for_the_sizes_of_the_example() -> None:
    asked: list[Any] = []

    def choose(data: Tensor, weight: Tensor, **named: Any) -> str:
        asked.append((data, weight, named))
        return "chosen"

    data, weight = torch.randn(2, 3, 4, 4), torch.randn(5, 3, 1, 1)
    assert chosen_by_hints(choose)(data, weight, groups=1) == "chosen"
    assert chosen_by_hints(choose)(input=data, weight=weight, groups=1) == "chosen", "as torch 2.11 asks"
    assert asked == [(data, weight, {"groups": 1})] * 2, "nothing varies: the tensors themselves"
