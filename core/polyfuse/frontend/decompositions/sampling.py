"""Images sampled at positions that data give (`grid_sample`), as one gather for each pixel that is read.

Positions and weights are computed for each point, not for each channel: a generator that repeats a loop over
channels inside need not compute them again. A pixel outside counts as zero, whatever lies at the border, and
positions that are no numbers are treated as eager mode's kernels for the CPU treat them.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)

_A = -0.75
"""The parameter of the cubic weights."""

_I32 = 1 << 31


def grid_sample_2d(
    x: Tensor, grid: Tensor, interpolation_mode: int = 0, padding_mode: int = 0, align_corners: bool = False
) -> Any:
    """Values of images (n, channels, height, width) at positions (n, rows, columns, 2) from -1 to 1."""
    if x.dtype != grid.dtype or not x.is_floating_point():
        return NotImplemented
    height, width = x.shape[2:]
    across = _Axis(grid[..., 0], width, padding_mode, align_corners)
    down = _Axis(grid[..., 1], height, padding_mode, align_corners)
    pixels = _Pixels(x)
    if interpolation_mode == _NEAREST:
        return pixels.at(down.nearest(), across.nearest())
    cubic = interpolation_mode == _BICUBIC
    rows, columns = (axis.cubic() if cubic else axis.linear() for axis in (down, across))

    def line(row: _Tap, part: Tensor) -> Tensor:
        """What one line of pixels adds: the products of the weights come first where these are linear."""
        if cubic:
            along = reduce(add, (pixels.at(row, column) * w.unsqueeze(1) for column, w in columns))
            return along * part.unsqueeze(1)
        return reduce(add, (pixels.at(row, column) * (part * w).unsqueeze(1) for column, w in columns))

    return reduce(add, (line(row, part) for row, part in rows))


class _Tap:
    """One pixel along an axis: its number, in range, and where it exists (None: everywhere)."""

    def __init__(self, position: Tensor, exists: Tensor | None, size: Any) -> None:
        self.number = position.to(torch.int32 if size < _I32 else torch.int64).clamp(0, size - 1)
        self.exists = exists


class _Axis:
    """Positions along an axis of an image, in pixels."""

    def __init__(self, position: Tensor, size: Any, padding: int, align_corners: bool) -> None:
        self.size, self.padding, self.align = size, padding, align_corners
        shifted = position + 1
        self.position = shifted * ((size - 1) / 2) if align_corners else shifted * (size / 2) - 0.5

    def nearest(self) -> _Tap:
        return self._tap(torch.round(self._padded(self.position)), self.padding == _ZEROS)

    def linear(self) -> list[tuple[_Tap, Tensor]]:
        """The pixels beside each position, and their weights."""
        position = self._padded(self.position)
        low = torch.floor(position)
        part = position - low
        # with padding, only the second may be outside, where its weight is zero
        return [
            (self._tap(low, self.padding == _ZEROS), 1 - part),
            (self._tap(low + 1, True), part),
        ]

    def cubic(self) -> list[tuple[_Tap, Tensor]]:
        """The four pixels around each position, and their weights."""
        low = torch.floor(self.position)
        part = self.position - low
        weights = (_outer(part + 1), _inner(part), _inner(1 - part), _outer(2 - part))
        taps = (self._tap(self._padded(low + step), self.padding == _ZEROS) for step in (-1, 0, 1, 2))
        return list(zip(taps, weights, strict=True))

    def _tap(self, position: Tensor, may_be_outside: bool) -> _Tap:
        inside = (position >= 0) & (position < self.size) if may_be_outside else None
        return _Tap(position, inside, self.size)

    def _padded(self, position: Tensor) -> Tensor:
        if self.padding == _ZEROS:
            return position
        if self.padding == _REFLECTION:
            position = self._reflected(position)
        # what is no number becomes the first pixel
        position = torch.where(position > 0, position, 0.0)
        last = torch.full((), self.size - 1, dtype=position.dtype, device=position.device)
        return torch.where(position < last, position, last)

    def _reflected(self, position: Tensor) -> Tensor:
        """Positions mirrored at the centres of the outer pixels, or at their edges."""
        low, span = (0.0, self.size - 1) if self.align else (-0.5, self.size)
        if span == 0:
            return torch.zeros_like(position)
        away = torch.where(position < low, low - position, position - low)
        rest = away - torch.trunc(away / (2 * span)) * (2 * span)
        back = 2 * span - rest
        return torch.where(rest <= back, rest, back) + low


class _Pixels:
    """The pixels of images, read by their numbers."""

    def __init__(self, x: Tensor) -> None:
        self.images, self.shape = x.flatten(2), x.shape

    def at(self, row: _Tap, column: _Tap) -> Tensor:
        """The pixels of all channels at each position; zero where there is none."""
        size, kind = self.shape[2] * self.shape[3], torch.int32
        if size >= _I32:
            kind = torch.int64
        number = row.number.to(kind) * self.shape[3] + column.number
        points = number.long().flatten(1).unsqueeze(1).expand(-1, self.shape[1], -1)
        found = torch.gather(self.images, 2, points).unflatten(2, number.shape[1:])
        exists = [tap.exists for tap in (row, column) if tap.exists is not None]
        if not exists:
            return found
        inside = exists[0] if len(exists) == 1 else exists[0] & exists[1]
        return torch.where(inside.unsqueeze(1), found, 0.0)


def _inner(x: Tensor) -> Tensor:
    """Weight of a pixel up to one away."""
    return ((_A + 2) * x - (_A + 3)) * x * x + 1


def _outer(x: Tensor) -> Tensor:
    """Weight of a pixel between one and two away."""
    return ((_A * x - 5 * _A) * x + 8 * _A) * x - 4 * _A
