"""Pooling and resampling of images and sounds."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from polyfuse_bench.blocks.block import Block, function, given, layer


def _pooling() -> list[Block]:
    x, large = (2, 64, 28, 28), (4, 64, 56, 56)
    g = "pooling"
    return [
        layer(g, "max_pool2d_3s2", lambda: nn.MaxPool2d(3, 2, 1), *large),
        layer(g, "max_pool2d_3s2_last", lambda: nn.MaxPool2d(3, 2, 1), *large, last=True),
        layer(g, "max_pool2d_2", lambda: nn.MaxPool2d(2), *large),
        layer(g, "max_pool2d_2_last", lambda: nn.MaxPool2d(2), *large, last=True),
        layer(g, "max_pool2d_5s1", lambda: nn.MaxPool2d(5, 1, 2), *x),
        layer(g, "max_pool2d_5s1_last", lambda: nn.MaxPool2d(5, 1, 2), *x, last=True),
        layer(g, "max_pool2d_7s2", lambda: nn.MaxPool2d(7, 2, 3), *x),
        layer(g, "max_pool2d_7s2_last", lambda: nn.MaxPool2d(7, 2, 3), *x, last=True),
        layer(g, "max_pool2d_13s1", lambda: nn.MaxPool2d(13, 1, 6), *x),
        layer(g, "max_pool1d", lambda: nn.MaxPool1d(3, 2, 1), 16, 64, 1024),
        layer(g, "max_pool3d", lambda: nn.MaxPool3d(2), 2, 32, 16, 28, 28),
        layer(g, "max_pool3d_3s2", lambda: nn.MaxPool3d(3, 2, 1), 2, 32, 16, 28, 28),
        layer(g, "avg_pool2d_2", lambda: nn.AvgPool2d(2), *large),
        layer(g, "avg_pool2d_2_last", lambda: nn.AvgPool2d(2), *large, last=True),
        layer(g, "avg_pool2d_3s2", lambda: nn.AvgPool2d(3, 2, 1), *large),
        layer(g, "avg_pool2d_3s2_last", lambda: nn.AvgPool2d(3, 2, 1), *large, last=True),
        layer(g, "avg_pool2d_3s1", lambda: nn.AvgPool2d(3, 1, 1), *large),
        layer(g, "avg_pool2d_3s1_last", lambda: nn.AvgPool2d(3, 1, 1), *large, last=True),
        layer(g, "avg_pool2d_7s7", lambda: nn.AvgPool2d(7), *large),
        layer(g, "avg_pool1d", lambda: nn.AvgPool1d(3, 2, 1), 16, 64, 1024),
        layer(g, "avg_pool3d", lambda: nn.AvgPool3d(2), 2, 32, 16, 28, 28),
        layer(g, "lp_pool2d", lambda: nn.LPPool2d(2, 3, 2), *x),
        layer(g, "adaptive_avg_pool2d_7", lambda: nn.AdaptiveAvgPool2d(7), 4, 64, 50, 50),
        layer(g, "adaptive_avg_pool2d_1", lambda: nn.AdaptiveAvgPool2d(1), 8, 256, 28, 28),
        layer(g, "adaptive_avg_pool2d_1_last", lambda: nn.AdaptiveAvgPool2d(1), 8, 256, 28, 28, last=True),
        layer(g, "adaptive_max_pool2d_7", lambda: nn.AdaptiveMaxPool2d(7), 4, 64, 50, 50),
        layer(g, "adaptive_max_pool2d_1", lambda: nn.AdaptiveMaxPool2d(1), 8, 256, 28, 28),
        layer(g, "fractional_max_pool2d", lambda: nn.FractionalMaxPool2d(3, output_ratio=0.5), *x),
    ]


def _interpolate(mode: str, scale: float, align: bool | None = None) -> Any:
    return lambda x: F.interpolate(x, scale_factor=scale, mode=mode, align_corners=align)


def _grid(h: int, w: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 32, 64, 64), torch.rand(2, h, w, 2) * 2.2 - 1.1


def _resampling() -> list[Block]:
    x, g = (2, 64, 56, 56), "resampling"
    return [
        function(g, "nearest_2", _interpolate("nearest", 2.0), x),
        function(g, "bilinear_2", _interpolate("bilinear", 2.0, False), x),
        function(g, "bilinear_2_aligned", _interpolate("bilinear", 2.0, True), x),
        function(g, "bilinear_half", _interpolate("bilinear", 0.5, False), x),
        function(g, "bicubic_2", _interpolate("bicubic", 2.0, False), x),
        function(g, "area_half", _interpolate("area", 0.5), x),
        function(g, "linear_2", _interpolate("linear", 2.0, False), (8, 64, 1024)),
        function(g, "trilinear_2", _interpolate("trilinear", 2.0, False), (1, 32, 8, 28, 28)),
        function(
            g,
            "bilinear_antialias",
            lambda x: F.interpolate(x, size=(40, 40), mode="bilinear", antialias=True),
            (2, 16, 100, 100),
        ),
        layer(g, "pixel_shuffle", lambda: nn.PixelShuffle(2), 2, 64, 56, 56),
        layer(g, "pixel_unshuffle", lambda: nn.PixelUnshuffle(2), 2, 64, 56, 56),
        layer(g, "channel_shuffle", lambda: nn.ChannelShuffle(4), 2, 64, 56, 56),
        layer(g, "unfold", lambda: nn.Unfold(3, padding=1), 2, 32, 56, 56),
        layer(g, "fold", lambda: nn.Fold((56, 56), 3, padding=1), 2, 32 * 9, 56 * 56),
        layer(g, "reflection_pad2d", lambda: nn.ReflectionPad2d(3), *x),
        layer(g, "replication_pad2d", lambda: nn.ReplicationPad2d(3), *x),
        layer(g, "zero_pad2d", lambda: nn.ZeroPad2d(3), *x),
        layer(g, "circular_pad2d", lambda: nn.CircularPad2d(3), *x),
        given(g, "grid_sample_bilinear", _sampler("bilinear"), lambda: _grid(64, 64), low=False),
        given(g, "grid_sample_bicubic", _sampler("bicubic"), lambda: _grid(64, 64), low=False),
        given(g, "grid_sample_nearest", _sampler("nearest"), lambda: _grid(64, 64), low=False),
        given(
            g,
            "affine_grid",
            lambda theta: F.affine_grid(theta, [8, 3, 224, 224], align_corners=False),
            lambda: (torch.randn(8, 2, 3),),
            low=False,
        ),
    ]


def _sampler(mode: str) -> Any:
    return lambda x, grid: F.grid_sample(x, grid, mode=mode, align_corners=False)


SAMPLING = (*_pooling(), *_resampling())
