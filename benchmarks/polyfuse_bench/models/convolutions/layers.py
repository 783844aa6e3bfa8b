"""Layers that many convolution networks share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from polyfuse_bench.models.family import Inputs, Size

Activation = Callable[[], nn.Module]

CLASSES = 1000
TINY_CLASSES = 10


def pixels(real: int, tiny: int = 32) -> Callable[[nn.Module, Size, int, int], Inputs]:
    """Square images of three channels."""

    def images(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
        extent = size.pick(real, tiny)
        return {"pixel_values": torch.randn(batch, 3, extent, extent)}

    return images


class OnImages(nn.Sequential):
    """Layers one after the other; the image comes by the name that models of `transformers` give it."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return super().forward(pixel_values)


class Residual(nn.Module):
    """What layers add to their input, or to what `shortcut` makes of it; then `after`."""

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.body(x) + self.shortcut(x))


class Concatenated(nn.Module):
    """The results of all branches, one after the other along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class SqueezeExcite(nn.Module):
    """Each channel times a number that is computed from the means of all channels."""

    def __init__(
        self, channels: int, squeezed: int, activation: Activation = nn.ReLU, gate: Activation = nn.Sigmoid
    ) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            activation(),
            nn.Conv2d(squeezed, channels, 1),
            gate(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale(x)


def conv(
    inner: int,
    outer: int,
    window: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    dilation: int = 1,
    activation: Activation | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution that keeps the extents, but for the stride; batch norm; activation."""
    margin = dilation * (window // 2)
    layers: list[nn.Module] = [
        nn.Conv2d(inner, outer, window, stride, margin, dilation, groups, bias=False),
        nn.BatchNorm2d(outer),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


def classifier(channels: int, size: Size) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size.pick(CLASSES, TINY_CLASSES))]


def sized(model: nn.Module) -> nn.Module:
    """`model` with weights for which a deep network's values neither grow nor vanish."""
    for layer in model.modules():
        if isinstance(layer, _CONVOLUTIONS):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        elif isinstance(layer, _BATCH_NORMS):
            # Some models of `transformers` draw them around zero, and values become denormal numbers.
            nn.init.ones_(layer.weight)
    return model


_CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
