"""Networks that give an image or boxes: UNet, YOLO, segmentation, super-resolution, decoders."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from polyfuse_bench.models.convolutions.layers import Concatenated, OnImages, Residual, conv, sized
from polyfuse_bench.models.family import Size


class UNet(nn.Module):
    """Goes down by pooling, up by transposed convolution, and joins what has the same extents."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            nn.Sequential(conv(inner, outer), conv(outer, outer))
            for inner, outer in zip([3, *widths], widths, strict=False)
        )
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1])
        self.up = nn.ModuleList(nn.Sequential(conv(2 * w, w), conv(w, w)) for w in widths[:-1])
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        levels = [self.down[0](pixel_values)]
        for block in self.down[1:]:
            levels.append(block(self.pool(levels[-1])))
        x = levels.pop()
        for grow, block, skip in zip(reversed(self.grow), reversed(self.up), reversed(levels), strict=True):
            x = block(torch.cat([skip, grow(x)], 1))
        return self.head(x)


def unet(size: Size) -> nn.Module:
    return sized(UNet(size.pick(32, 8), size.pick(4, 2), 2))


class Split(nn.Module):
    """A stage of YOLOv8 (C2f): half of the channels pass through blocks, and all results are joined."""

    def __init__(self, inner: int, outer: int, depth: int, adds: bool = True) -> None:
        super().__init__()
        half = outer // 2
        self.enter = conv(inner, outer, 1, activation=nn.SiLU)
        pairs = [
            nn.Sequential(conv(half, half, activation=nn.SiLU), conv(half, half, activation=nn.SiLU))
            for _ in range(depth)
        ]
        self.blocks = nn.ModuleList(Residual(pair) if adds else pair for pair in pairs)
        self.leave = conv((2 + depth) * half, outer, 1, activation=nn.SiLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.enter(x).chunk(2, 1))
        for block in self.blocks:
            parts.append(block(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """Maxima over windows of 5, 9 and 13 beside the image itself (SPPF)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.enter = conv(channels, channels // 2, 1, activation=nn.SiLU)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.leave = conv(2 * channels, channels, 1, activation=nn.SiLU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.enter(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.leave(torch.cat(parts, 1))


class Yolo(nn.Module):
    """The backbone, the neck and the convolutions of the heads of YOLOv8, by its smallest width."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        w = [width << level for level in range(5)]
        self.third = nn.Sequential(
            conv(3, w[0], 3, 2, activation=nn.SiLU),
            conv(w[0], w[1], 3, 2, activation=nn.SiLU),
            Split(w[1], w[1], 1),
            conv(w[1], w[2], 3, 2, activation=nn.SiLU),
            Split(w[2], w[2], 2),
        )
        self.fourth = nn.Sequential(conv(w[2], w[3], 3, 2, activation=nn.SiLU), Split(w[3], w[3], 2))
        self.fifth = nn.Sequential(
            conv(w[3], w[4], 3, 2, activation=nn.SiLU), Split(w[4], w[4], 1), Pyramid(w[4])
        )
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.up_fourth = Split(w[4] + w[3], w[3], 1, adds=False)
        self.up_third = Split(w[3] + w[2], w[2], 1, adds=False)
        self.down_third = conv(w[2], w[2], 3, 2, activation=nn.SiLU)
        self.down_fourth = Split(w[2] + w[3], w[3], 1, adds=False)
        self.heads = nn.ModuleList(
            Concatenated(self.head(inner, w[2], 64), self.head(inner, w[2], classes))
            for inner in (w[2], w[3])
        )

    @staticmethod
    def head(inner: int, width: int, outer: int) -> nn.Module:
        return nn.Sequential(
            conv(inner, width, activation=nn.SiLU),
            conv(width, width, activation=nn.SiLU),
            nn.Conv2d(width, outer, 1),
        )

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        third = self.third(pixel_values)
        fourth = self.fourth(third)
        fourth = self.up_fourth(torch.cat([self.up(self.fifth(fourth)), fourth], 1))
        third = self.up_third(torch.cat([self.up(fourth), third], 1))
        fourth = self.down_fourth(torch.cat([self.down_third(third), fourth], 1))
        found = [head(x).flatten(2) for head, x in zip(self.heads, (third, fourth), strict=True)]
        return torch.cat(found, 2)


def yolo(size: Size) -> nn.Module:
    return sized(Yolo(size.pick(16, 8), size.pick(80, 4)))


class Segmenter(nn.Module):
    """A backbone and a head; the result is interpolated to the extents of the image."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        found = self.head(self.backbone(pixel_values))
        return F.interpolate(found, size=pixel_values.shape[-2:], mode="bilinear", align_corners=False)


class MeanOverImage(nn.Sequential):
    """Layers on the mean of each channel, whose result is spread over the image again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mean((2, 3), keepdim=True)).expand(-1, -1, *x.shape[-2:])


def deeplab(size: Size) -> nn.Module:
    """DeepLabV3's atrous pyramid on a dilated backbone of basic blocks."""
    width = size.pick(256, 16)
    outer = size.pick(128, 8)
    pyramid = Concatenated(
        conv(width, outer, 1),
        *(conv(width, outer, 3, dilation=rate) for rate in (6, 12, 18)),
        MeanOverImage(conv(width, outer, 1)),
    )
    head = nn.Sequential(pyramid, conv(5 * outer, outer, 1), conv(outer, outer), nn.Conv2d(outer, 21, 1))
    return sized(Segmenter(_dilated(size, width), head))


def fcn(size: Size) -> nn.Module:
    width = size.pick(256, 16)
    return sized(
        Segmenter(_dilated(size, width), nn.Sequential(conv(width, width // 4), nn.Conv2d(width // 4, 21, 1)))
    )


def _dilated(size: Size, width: int) -> nn.Module:
    """Basic blocks that keep the image at an eighth of its extents and dilate their windows instead."""
    layers: list[nn.Module] = [conv(3, width // 4, 7, 2), nn.MaxPool2d(3, 2, 1)]
    last = width // 4
    for outer, stride, rate in ((width // 4, 1, 1), (width // 2, 2, 1), (width, 1, 2), (width, 1, 4)):
        body = [
            conv(last, outer, 3, stride, dilation=rate),
            conv(outer, outer, 3, dilation=rate, activation=None),
        ]
        shortcut = conv(last, outer, 1, stride, activation=None) if (last, stride) != (outer, 1) else None
        layers.append(Residual(nn.Sequential(*body), shortcut, nn.ReLU()))
        last = outer
    return nn.Sequential(*layers)


def espcn(size: Size) -> nn.Module:
    """Super-resolution by four convolutions and a pixel shuffle."""
    wide, narrow = size.pick(64, 8), size.pick(32, 8)
    layers = [
        nn.Conv2d(3, wide, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(wide, wide, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(wide, narrow, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(narrow, 3 * 9, 3, padding=1),
        nn.PixelShuffle(3),
    ]
    return sized(OnImages(*layers))


def edsr(size: Size) -> nn.Module:
    """Super-resolution by residual blocks without normalisation."""
    width = size.pick(64, 8)
    blocks = [
        Residual(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.PReLU(), nn.Conv2d(width, width, 3, padding=1)
            )
        )
        for _ in range(size.pick(8, 2))
    ]
    grown = [nn.Conv2d(width, 4 * width, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(width, 3, 3, padding=1)]
    return sized(OnImages(nn.Conv2d(3, width, 3, padding=1), Residual(nn.Sequential(*blocks)), *grown))


def decoder(size: Size) -> nn.Module:
    """The decoder of an image autoencoder: group norm, SiLU, nearest neighbours."""
    width, groups = size.pick(128, 16), size.pick(32, 4)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for outer in (width, width // 2, width // 2):
        inner = width
        body = [
            nn.GroupNorm(groups, inner),
            nn.SiLU(),
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.GroupNorm(groups, outer),
            nn.SiLU(),
            nn.Conv2d(outer, outer, 3, padding=1),
        ]
        shortcut = nn.Conv2d(inner, outer, 1) if inner != outer else None
        layers += [Residual(nn.Sequential(*body), shortcut), nn.Upsample(scale_factor=2)]
        layers.append(nn.Conv2d(outer, outer, 3, padding=1))
        width = outer
    return sized(OnImages(*layers, nn.GroupNorm(groups, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)))
