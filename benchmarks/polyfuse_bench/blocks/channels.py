"""Convolutions, and norms of channels and rows."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from polyfuse_bench.blocks.block import Block, function, layer


def _convolutions() -> list[Block]:
    g = "convolutions"
    return [
        layer(g, "conv1d", lambda: nn.Conv1d(64, 64, 5, padding=2), 4, 64, 1024),
        layer(g, "conv1d_depthwise", lambda: nn.Conv1d(128, 128, 7, padding=3, groups=128), 4, 128, 1024),
        layer(g, "conv1d_dilated", lambda: nn.Conv1d(64, 64, 3, padding=4, dilation=4), 4, 64, 1024),
        layer(g, "conv2d_3", lambda: nn.Conv2d(64, 64, 3, padding=1), 2, 64, 28, 28),
        layer(g, "conv2d_3_last", lambda: nn.Conv2d(64, 64, 3, padding=1), 2, 64, 28, 28, last=True),
        layer(g, "conv2d_1", lambda: nn.Conv2d(128, 128, 1), 2, 128, 28, 28),
        layer(g, "conv2d_7s2", lambda: nn.Conv2d(3, 32, 7, 2, 3), 2, 3, 112, 112),
        layer(g, "conv2d_depthwise", lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96), 4, 96, 28, 28),
        layer(
            g,
            "conv2d_depthwise_last",
            lambda: nn.Conv2d(96, 96, 3, padding=1, groups=96),
            4,
            96,
            28,
            28,
            last=True,
        ),
        layer(g, "conv2d_depthwise_7", lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), 2, 96, 28, 28),
        layer(g, "conv2d_grouped", lambda: nn.Conv2d(128, 128, 3, padding=1, groups=8), 2, 128, 28, 28),
        layer(g, "conv2d_dilated", lambda: nn.Conv2d(64, 64, 3, padding=2, dilation=2), 2, 64, 28, 28),
        layer(g, "conv3d", lambda: nn.Conv3d(16, 32, 3, padding=1), 1, 16, 8, 28, 28),
        layer(g, "conv_transpose1d", lambda: nn.ConvTranspose1d(64, 32, 4, 2, 1), 4, 64, 512),
        layer(g, "conv_transpose2d_2", lambda: nn.ConvTranspose2d(64, 32, 2, 2), 2, 64, 28, 28),
        layer(g, "conv_transpose2d_4", lambda: nn.ConvTranspose2d(64, 32, 4, 2, 1), 2, 64, 28, 28),
        layer(g, "conv_transpose3d", lambda: nn.ConvTranspose3d(16, 16, 2, 2), 1, 16, 8, 14, 14),
        layer(
            g,
            "conv_bn_relu",
            lambda: nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
            2,
            64,
            28,
            28,
        ),
    ]


def _norms() -> list[Block]:
    x, g = (4, 64, 56, 56), "norms"
    return [
        layer(g, "batch_norm1d", lambda: nn.BatchNorm1d(512), 1024, 512),
        layer(g, "batch_norm2d", lambda: nn.BatchNorm2d(64), *x),
        layer(g, "batch_norm2d_last", lambda: nn.BatchNorm2d(64), *x, last=True),
        layer(g, "batch_norm2d_eval", lambda: nn.BatchNorm2d(64).eval(), *x),
        layer(g, "batch_norm3d", lambda: nn.BatchNorm3d(32), 2, 32, 8, 28, 28),
        layer(g, "instance_norm2d", lambda: nn.InstanceNorm2d(64, affine=True), *x),
        layer(g, "group_norm", lambda: nn.GroupNorm(8, 64), *x),
        layer(g, "group_norm_last", lambda: nn.GroupNorm(8, 64), *x, last=True),
        layer(g, "local_response_norm", lambda: nn.LocalResponseNorm(5), *x, low=False),
        layer(g, "layer_norm", lambda: nn.LayerNorm(768), 512, 768),
        layer(g, "rms_norm", lambda: nn.RMSNorm(768), 512, 768),
        function(g, "normalize", lambda x: F.normalize(x, dim=-1), (1024, 512)),
        function(g, "normalize_columns", lambda x: F.normalize(x, dim=0), (1024, 512)),
    ]


CHANNELS = (*_convolutions(), *_norms())
