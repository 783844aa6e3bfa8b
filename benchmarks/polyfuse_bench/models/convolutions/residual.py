"""Classifiers made of blocks that add to their input: ResNet, ResNeXt, RegNet, SE-ResNet."""

from __future__ import annotations

import transformers as hf
from torch import nn

from polyfuse_bench.models.convolutions.layers import (
    CLASSES,
    TINY_CLASSES,
    OnImages,
    Residual,
    SqueezeExcite,
    classifier,
    conv,
    sized,
)
from polyfuse_bench.models.family import Size


def resnet18(size: Size) -> nn.Module:
    return _resnet(size, "basic", [2, 2, 2, 2], [64, 128, 256, 512])


def resnet34(size: Size) -> nn.Module:
    return _resnet(size, "basic", [3, 4, 6, 3], [64, 128, 256, 512])


def resnet50(size: Size) -> nn.Module:
    return _resnet(size, "bottleneck", [3, 4, 6, 3], [256, 512, 1024, 2048])


def _resnet(size: Size, layer: str, depths: list[int], widths: list[int]) -> nn.Module:
    tiny = size is Size.TINY
    config = hf.ResNetConfig(
        embedding_size=size.pick(64, 8),
        layer_type=layer,
        hidden_sizes=[16, 16, 32, 32] if tiny else widths,
        depths=[1, 1, 1, 1] if tiny else depths,
        num_labels=size.pick(CLASSES, TINY_CLASSES),
    )
    return sized(hf.ResNetForImageClassification(config))


def regnet_y(size: Size) -> nn.Module:
    """RegNetY-400MF: groups of eight channels, squeeze and excitation."""
    tiny = size is Size.TINY
    config = hf.RegNetConfig(
        layer_type="y",
        embedding_size=size.pick(32, 8),
        hidden_sizes=[16, 32] if tiny else [48, 104, 208, 440],
        depths=[1, 1] if tiny else [1, 3, 6, 6],
        groups_width=8,
        num_labels=size.pick(CLASSES, TINY_CLASSES),
    )
    return sized(hf.RegNetForImageClassification(config))


def resnext50(size: Size) -> nn.Module:
    """ResNeXt-50 32x4d: groups of 4, 8, 16 and 32 channels."""
    return _bottlenecks(size, groups=size.pick(32, 4), inner=size.pick(128, 16), squeeze=False)


def se_resnet50(size: Size) -> nn.Module:
    return _bottlenecks(size, groups=1, inner=size.pick(64, 8), squeeze=True)


def _bottlenecks(size: Size, groups: int, inner: int, squeeze: bool) -> nn.Module:
    depths = (1, 1) if size is Size.TINY else (3, 4, 6, 3)
    last, outer = size.pick(64, 8), size.pick(256, 16)
    layers: list[nn.Module] = [conv(3, last, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        for block in range(depth):
            stride = 2 if stage and not block else 1
            body = [
                conv(last, inner, 1),
                conv(inner, inner, 3, stride, groups=groups),
                conv(inner, outer, 1, activation=None),
                *([SqueezeExcite(outer, outer // 16)] if squeeze else []),
            ]
            shortcut = None if block else conv(last, outer, 1, stride, activation=None)
            layers.append(Residual(nn.Sequential(*body), shortcut, nn.ReLU()))
            last = outer
        inner, outer = 2 * inner, 2 * outer
    return sized(OnImages(*layers, *classifier(last, size)))
