"""An operator that cannot be recorded, and work enough around it that the rest is recorded in parts."""

from __future__ import annotations

import torch


@torch.library.custom_op("polyfuse_tests::obstacle", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def obstacle(x: torch.Tensor) -> torch.Tensor:
    """Twice `x`."""
    return x * 2


@obstacle.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


obstacle.register_autograd(lambda ctx, grad: grad * 2)


def layers(x: torch.Tensor, w: torch.Tensor, count: int = 4) -> torch.Tensor:
    """Work that is not fused into one kernel."""
    for _ in range(count):
        x = torch.softmax(x @ w, -1) + x.mean()
    return x


def around(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Layers, the obstacle, and layers again."""
    middle: torch.Tensor = obstacle(layers(x, w))
    return layers(middle, w)
