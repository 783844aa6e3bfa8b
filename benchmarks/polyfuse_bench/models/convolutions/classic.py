"""Classifiers of plain, parallel and densely connected convolutions: VGG, GoogLeNet, DenseNet."""

from __future__ import annotations

import torch
from torch import nn

from polyfuse_bench.models.convolutions.layers import Concatenated, OnImages, classifier, conv, sized
from polyfuse_bench.models.family import Size


def vgg16(size: Size) -> nn.Module:
    """VGG-16 without its large linear layers and without batch norm."""
    blocks = ((8, 1), (16, 2)) if size is Size.TINY else ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
    layers: list[nn.Module] = []
    last = 3
    for width, depth in blocks:
        for _ in range(depth):
            layers += [nn.Conv2d(last, width, 3, padding=1), nn.ReLU()]
            last = width
        layers.append(nn.MaxPool2d(2))
    return sized(OnImages(*layers, *classifier(last, size)))


# Channels of each branch of GoogLeNet's units; None: a pooling.
_INCEPTIONS = (
    (192, 64, 96, 128, 16, 32, 32),
    (256, 128, 128, 192, 32, 96, 64),
    None,
    (480, 192, 96, 208, 16, 48, 64),
    (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64),
    (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128),
    None,
    (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
)


def googlenet(size: Size) -> nn.Module:
    """GoogLeNet with batch norm and without the classifiers of training."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), conv(64, 64, 1)]
    layers += [conv(64, 192, 3), nn.MaxPool2d(3, 2, ceil_mode=True)]
    last = 192
    for row in _INCEPTIONS[: size.pick(len(_INCEPTIONS), 2)]:
        if row is None:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            continue
        inner, one, three_in, three, five_in, five, pooled = row
        layers.append(
            Concatenated(
                conv(inner, one, 1),
                nn.Sequential(conv(inner, three_in, 1), conv(three_in, three, 3)),
                nn.Sequential(conv(inner, five_in, 1), conv(five_in, five, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inner, pooled, 1)),
            )
        )
        last = one + three + five + pooled
    return sized(OnImages(*layers, *classifier(last, size)))


class DenseLayer(nn.Module):
    """Adds channels that are computed from all before; normalisation comes before the convolutions."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            conv(inner, 4 * growth, 1),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.layers(x)], 1)


def densenet121(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    growth = size.pick(32, 8)
    layers: list[nn.Module] = [conv(3, 2 * growth, 7, 2), nn.MaxPool2d(3, 2, 1)]
    last = 2 * growth
    for number, depth in enumerate((2, 2) if tiny else (6, 12, 24, 16)):
        if number:
            layers += [nn.BatchNorm2d(last), nn.ReLU(), nn.Conv2d(last, last // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            last //= 2
        for _ in range(depth):
            layers.append(DenseLayer(last, growth))
            last += growth
    return sized(OnImages(*layers, nn.BatchNorm2d(last), nn.ReLU(), *classifier(last, size)))
