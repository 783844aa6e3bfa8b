"""Operand values: edge cases of each type, and ordinary numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from polyfuse.ir.types import DType

_SPECIAL = (
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.5, -2.5),
    *(2.0, -2.0, 3.0, -3.0, 7.0, -7.0, 10.0, math.pi, -math.pi, math.e, 0.1, -0.3, 0.999999, -0.999999),
    *(1.000001, 1e-3, -1e-8, 20.25, -20.25, 87.5, -87.5, 100.0, -104.0, 1023.5, 1e5, -123456.7, 1e10),
    16777217.0,
)
_SINGLE = (1.1754944e-38, 1e-40, -1e-40, 1.4e-45, -1.4e-45, 3.4028235e38, -3.4028235e38, 1.1920929e-07)
_DOUBLE = (2.2250738585072014e-308, 5e-324, -5e-324, 1.7976931348623157e308, -1.7e308, 2.2e-16, 1e100)
_HALF = (65504.0, -65504.0, 6e-8, 6.1e-5, 0.333, 1000.5, 2049.0)


_TWINS = {
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}


def special(dtype: DType) -> Tensor:
    """The edge values of a type."""
    if dtype is DType.bool:
        return torch.tensor([False, True])
    if dtype.is_float:
        more = {DType.f64: _DOUBLE + _SINGLE, DType.f16: _HALF}.get(dtype, _SINGLE)
        return torch.tensor(_SPECIAL + more, dtype=torch.float64).to(dtype.torch)
    bits = dtype.itemsize * 8
    low = -(1 << (bits - 1)) if dtype.is_signed else 0
    high = (1 << (bits - 1)) - 1 if dtype.is_signed else (1 << bits) - 1
    small = [-128, -100, -17, -7, -3, -2, -1] if dtype.is_signed else []
    values = [low, low + 1, *small, 0, 1, 2, 3, 7, 10, 17, 100, 127, high // 2, high - 1, high]
    return integers(values, dtype)


def integers(values: list[int], dtype: DType) -> Tensor:
    """A tensor of any integer type."""
    bits = dtype.itemsize * 8
    signed = [v - (1 << bits) if v >= (1 << (bits - 1)) else v for v in values]
    width = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    return torch.tensor(signed, dtype=width).view(dtype.torch)


def plain(dtype: DType, count: int, seed: int = 0) -> Tensor:
    """Ordinary values, always the same for the same seed."""
    made = torch.Generator().manual_seed(seed * 7919 + count)
    if dtype is DType.bool:
        return torch.rand(count, generator=made) < 0.5
    if dtype.is_float:
        return (torch.randn(count, generator=made) * 3).to(dtype.torch)
    low = -20 if dtype.is_signed else 0
    found = torch.randint(low, 60, (count,), generator=made)
    return found.to(dtype.torch)


def operands(dtype: DType, arity: int) -> tuple[Tensor, ...]:
    """Operands of a scalar operation: every edge value with every other (of two), and plain ones behind."""
    edges = special(dtype)
    if arity == 1:
        return (torch.cat([edges, plain(dtype, 83, 1)]),)
    count = len(edges)
    first = index(edges, torch.arange(count).repeat_interleave(count))
    second = index(edges, torch.arange(count).repeat(count))
    third = index(edges, (torch.arange(count * count) * 5 + 3) % count)
    columns = [torch.cat([c, plain(dtype, 101, seed)]) for seed, c in enumerate((first, second, third))]
    return tuple(columns[:arity])


def index(values: Tensor, positions: Tensor) -> Tensor:
    """Elements of a tensor of any type."""
    twin = _TWINS.get(values.dtype)
    return values[positions] if twin is None else values.view(twin)[positions].view(values.dtype)
