"""The example of the README and of docs/debugging.md."""

import torch


@torch.compile(backend="polyfuse")
def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


y = rms_norm(torch.randn(64, 512), torch.ones(512))
