"""Linear layers whose weights are stored with 8 or 4 bits, as weight-only quantisation writes them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_GROUP = 128
"""Numbers of a weight of four bits that share a scale."""


class Int8(nn.Module):
    """A layer with a scale for each result."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("numbers", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale[:, 0].to(layer.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.numbers.to(x.dtype)) * self.scale


class Int4(nn.Module):
    """A layer with two numbers in a byte and a scale for each group."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        groups = layer.weight.detach().float().unflatten(1, (-1, _GROUP))
        scale = groups.abs().amax(2, keepdim=True) / 7
        numbers = ((groups / scale).round() + 8).clamp(0, 15).to(torch.uint8).flatten(1)
        self.register_buffer("bytes", numbers[:, 0::2] | (numbers[:, 1::2] << 4))
        self.register_buffer("scale", scale.to(layer.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.stack((self.bytes & 15, self.bytes >> 4), -1).flatten(1).unflatten(1, (-1, _GROUP))
        return F.linear(x, ((numbers.to(x.dtype) - 8) * self.scale).flatten(1))


STORED: dict[str, type[nn.Module]] = {"int8": Int8, "int4": Int4}
"""Layers by what their weights are stored as."""


def narrowed(model: nn.Module, stored: str) -> nn.Module:
    """The model with all of its linear layers stored so, in place."""
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, STORED[stored](child))
        else:
            narrowed(child, stored)
    return model
