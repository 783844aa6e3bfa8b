"""Convolutions over time, and over time and space: waveforms, video."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from polyfuse_bench.models.convolutions.layers import Residual, sized
from polyfuse_bench.models.family import Inputs, Size


def waves(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    """A second of sound."""
    return {"input_values": torch.randn(batch, 1, size.pick(16000, 1024))}


def clips(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    """Eight small images of three channels."""
    extent = size.pick(112, 32)
    return {"pixel_values": torch.randn(batch, 3, size.pick(8, 4), extent, extent)}


class OnWaves(nn.Sequential):
    """Layers one after the other; the waveform comes by the name that models of `transformers` give it."""

    def forward(self, input_values: torch.Tensor) -> torch.Tensor:
        return super().forward(input_values)


class OnClips(nn.Sequential):
    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return super().forward(pixel_values)


def wave_net(size: Size) -> nn.Module:
    """Classes of sounds: a long window first, then windows of three with poolings between (M11)."""
    layers = _over_time(1, size.pick(64, 8), 80, 4)
    last = size.pick(64, 8)
    for outer, depth in ((64, 2), (128, 2), (256, 3), (512, 2))[: size.pick(4, 2)]:
        layers.append(nn.MaxPool1d(4))
        for _ in range(depth):
            layers += _over_time(last, outer, 3)
            last = outer
    return sized(OnWaves(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(last, 35)))


def _over_time(inner: int, outer: int, window: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv1d(inner, outer, window, stride, window // 2), nn.BatchNorm1d(outer), nn.ReLU()]


class Gated(nn.Module):
    """A causal, dilated convolution whose second half of channels gates the first (WaveNet)."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.margin = dilation
        self.both = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.both(F.pad(x, (self.margin, 0))).chunk(2, 1)
        return x + self.mix(torch.tanh(value) * torch.sigmoid(gate))


def dilated_waves(size: Size) -> nn.Module:
    width = size.pick(64, 8)
    layers = [Gated(width, 1 << level) for level in range(size.pick(8, 3))]
    return sized(OnWaves(nn.Conv1d(1, width, 8, 4), *layers, nn.ReLU(), nn.Conv1d(width, 256, 1)))


def resnet3d(size: Size) -> nn.Module:
    """R3D-18 with half of its channels."""
    width = size.pick(32, 8)
    layers: list[nn.Module] = [
        nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False),
        nn.BatchNorm3d(width),
        nn.ReLU(),
    ]
    last = width
    for level in range(size.pick(4, 2)):
        outer = width << level
        for block in range(size.pick(2, 1)):
            stride = 2 if level and not block else 1
            body = [*_over_space(last, outer, 3, stride), nn.ReLU(), *_over_space(outer, outer, 3)]
            shortcut = nn.Sequential(*_over_space(last, outer, 1, stride)) if stride > 1 else None
            layers.append(Residual(nn.Sequential(*body), shortcut, nn.ReLU()))
            last = outer
    return sized(OnClips(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(last, 400)))


def _over_space(inner: int, outer: int, window: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv3d(inner, outer, window, stride, window // 2, bias=False), nn.BatchNorm3d(outer)]
