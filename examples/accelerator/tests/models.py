"""Small models that are written out, so that nothing is downloaded."""

import torch
from torch import nn
from torch.nn import functional as F


class Llama(nn.Module):
    """Token embedding, blocks of RMS norm, rotary attention and gated MLP, and the head."""

    def __init__(self, words=50, width=32, heads=4, depth=2):
        super().__init__()
        self.embed, self.heads = nn.Embedding(words, width), heads
        self.blocks = nn.ModuleList()
        for _ in range(depth):
            names = {"q": width, "k": width, "v": width, "o": width, "gate": 2 * width, "up": 2 * width}
            block = nn.ModuleDict({name: nn.Linear(width, n, bias=False) for name, n in names.items()})
            block["down"] = nn.Linear(2 * width, width, bias=False)
            block["norm1"], block["norm2"] = nn.RMSNorm(width), nn.RMSNorm(width)
            self.blocks.append(block)
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            y = block["norm1"](x)
            q, k, v = (self.split(block[name](y)) for name in "qkv")
            q, k = rotated(q), rotated(k)
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            mixed = scores.masked_fill(later, -1e9).softmax(-1) @ v
            x = x + block["o"](mixed.transpose(1, 2).flatten(2))
            y = block["norm2"](x)
            x = x + block["down"](F.silu(block["gate"](y)) * block["up"](y))
        return self.head(self.norm(x))

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def rotated(x):
    half = x.shape[-1] // 2
    rates = 10000.0 ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * rates
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)


class ResNet(nn.Module):
    """A stem and two residual blocks."""

    def __init__(self, width=8, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for k in (0, 2):
            y = F.relu(self.norms[k](self.convolutions[k](x)))
            x = F.relu(x + self.norms[k + 1](self.convolutions[k + 1](y)))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
