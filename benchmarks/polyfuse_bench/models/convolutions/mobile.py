"""Classifiers for small devices, most of depthwise convolutions: MobileNet, EfficientNet, ShuffleNet."""

from __future__ import annotations

import torch
import transformers as hf
from torch import nn

from polyfuse_bench.models.convolutions.layers import (
    CLASSES,
    TINY_CLASSES,
    Activation,
    Concatenated,
    OnImages,
    Residual,
    SqueezeExcite,
    classifier,
    conv,
    sized,
)
from polyfuse_bench.models.family import Size


def mobilenet_v1(size: Size) -> nn.Module:
    config = hf.MobileNetV1Config(num_labels=size.pick(CLASSES, TINY_CLASSES), classifier_dropout_prob=0.0)
    if size is Size.TINY:
        config.depth_multiplier = 0.25
    return sized(hf.MobileNetV1ForImageClassification(config))


def efficientnet(size: Size) -> nn.Module:
    """EfficientNet-B0."""
    config = hf.EfficientNetConfig(
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        dropout_rate=0.0,
        drop_connect_rate=0.0,
        num_labels=size.pick(CLASSES, TINY_CLASSES),
    )
    if size is Size.TINY:
        config.width_coefficient, config.hidden_dim = 0.25, 320
        config.num_block_repeats = [1] * 7
    model = hf.EfficientNetForImageClassification(config)
    # Its window is larger than any image, which OpenVINO refuses; the mean over the image is the same.
    model.efficientnet.pooler = nn.AdaptiveAvgPool2d(1)
    return sized(model)


# Window, expanded channels, channels, squeeze and excitation, hard swish instead of ReLU, stride.
_V3_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


def mobilenet_v3(size: Size) -> nn.Module:
    """MobileNetV3-Large: hard swish, squeeze and excitation with a hard sigmoid."""
    rows = _V3_LARGE[:4] if size is Size.TINY else _V3_LARGE
    layers: list[nn.Module] = [conv(3, 16, 3, 2, activation=nn.Hardswish)]
    last = 16
    for window, wide, outer, squeeze, swish, stride in rows:
        activation: Activation = nn.Hardswish if swish else nn.ReLU
        body = [
            *([conv(last, wide, 1, activation=activation)] if wide != last else []),
            conv(wide, wide, window, stride, groups=wide, activation=activation),
            *([SqueezeExcite(wide, wide // 4, gate=nn.Hardsigmoid)] if squeeze else []),
            conv(wide, outer, 1, activation=None),
        ]
        block = nn.Sequential(*body)
        layers.append(Residual(block) if stride == 1 and last == outer else block)
        last = outer
    wide = 6 * last
    layers += [conv(last, wide, 1, activation=nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += [nn.Linear(wide, 1280), nn.Hardswish(), nn.Linear(1280, size.pick(CLASSES, TINY_CLASSES))]
    return sized(OnImages(*layers))


class Shuffled(nn.Module):
    """A unit of ShuffleNetV2: half of the channels pass through layers, and the halves are interleaved."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        half = outer // 2
        self.splits = stride == 1
        start = half if self.splits else inner
        self.left = (
            nn.Identity()
            if self.splits
            else nn.Sequential(conv(inner, inner, 3, 2, groups=inner, activation=None), conv(inner, half, 1))
        )
        self.right = nn.Sequential(
            conv(start, half, 1),
            conv(half, half, 3, stride, groups=half, activation=None),
            conv(half, half, 1),
        )
        self.shuffle = nn.ChannelShuffle(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, 1) if self.splits else (x, x)
        return self.shuffle(torch.cat([self.left(left), self.right(right)], 1))


def shufflenet(size: Size) -> nn.Module:
    """ShuffleNetV2 1.0."""
    widths, depths = ((16, 32), (1, 1)) if size is Size.TINY else ((116, 232, 464), (3, 7, 3))
    layers: list[nn.Module] = [conv(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    last = 24
    for width, depth in zip(widths, depths, strict=True):
        layers += [Shuffled(last, width, 2), *(Shuffled(width, width, 1) for _ in range(depth))]
        last = width
    return sized(OnImages(*layers, conv(last, 1024, 1), *classifier(1024, size)))


class Fire(nn.Sequential):
    """A unit of SqueezeNet: few channels, from which windows of two extents are computed; no batch norm."""

    def __init__(self, inner: int, squeezed: int, outer: int) -> None:
        super().__init__(
            nn.Conv2d(inner, squeezed, 1),
            nn.ReLU(),
            Concatenated(nn.Conv2d(squeezed, outer, 1), nn.Conv2d(squeezed, outer, 3, padding=1)),
            nn.ReLU(),
        )


def squeezenet(size: Size) -> nn.Module:
    """SqueezeNet 1.1."""
    widths = ((16, 64), (32, 128), (48, 192), (64, 256))
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU()]
    last = 64
    for number, (squeezed, outer) in enumerate(widths[: size.pick(4, 2)]):
        if number < 3:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        layers += [Fire(last, squeezed, outer), Fire(2 * outer, squeezed, outer)]
        last = 2 * outer
    classes = size.pick(CLASSES, TINY_CLASSES)
    layers += [nn.Conv2d(last, classes, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return sized(OnImages(*layers))
