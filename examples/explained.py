"""The example that docs/debugging.md annotates: each section of `polyfuse explain` occurs in it."""

import torch


@torch.compile(backend="polyfuse")
def step(x, weight):
    y = torch.softmax(x * weight, dim=-1)
    z = torch.special.airy_ai(y)
    return z.cumsum(0), torch.cat([x, y]) * 2


step(torch.randn(8, 64), torch.randn(64))
