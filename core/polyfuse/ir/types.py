"""Scalar types of the IR."""

from __future__ import annotations

import builtins
import re
from enum import Enum
from functools import cache

import torch


class DType(Enum):
    """A scalar type, by its name in IR text.

    Floating-point types narrower than f32 are storage types: they are loaded, stored and converted, and
    values are computed in f32. Those of eight bits are torch's ``float8_e4m3fn`` (no infinity),
    ``float8_e5m2``, and the two with ``fnuz``: no infinity, no negative zero, one NaN.
    """

    # members are compared by identity: an enumeration's own hash, of the name, is a Python call
    __hash__ = object.__hash__

    f32 = "f32"
    f64 = "f64"
    bf16 = "bf16"
    f16 = "f16"
    f8e4m3 = "f8e4m3"
    f8e5m2 = "f8e5m2"
    f8e4m3fnuz = "f8e4m3fnuz"
    f8e5m2fnuz = "f8e5m2fnuz"
    i8 = "i8"
    i16 = "i16"
    i32 = "i32"
    i64 = "i64"
    u8 = "u8"
    u16 = "u16"
    u32 = "u32"
    u64 = "u64"
    bool = "bool"

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__

    @property
    def itemsize(self) -> int:
        """Bytes of one element in memory."""
        return _BYTES[self]

    @property
    def is_float(self) -> builtins.bool:
        """Whether this is a floating-point type."""
        return self in (DType.f32, DType.f64) or self.is_storage

    @property
    def is_storage(self) -> builtins.bool:
        """Whether this is a floating-point type that exists in memory alone."""
        return self in (DType.bf16, DType.f16) or self.is_eight_bit_float

    @property
    def is_eight_bit_float(self) -> builtins.bool:
        """Whether this is a floating-point type of one byte."""
        return self.value.startswith("f8")

    @property
    def has_negative_zero(self) -> builtins.bool:
        """Whether a zero of this type keeps its sign."""
        return self.is_float and not self.value.endswith("fnuz")

    @property
    def is_integer(self) -> builtins.bool:
        """Whether this is an integer type (bool is not)."""
        return not self.is_float and self is not DType.bool

    @property
    def is_signed(self) -> builtins.bool:
        """Whether this type has negative values."""
        return self.is_float or self.value.startswith("i")

    @property
    def lowest(self) -> builtins.bool | int | float:
        """The least value."""
        if self.is_float:
            return float("-inf")
        if self is DType.bool:
            return False
        return -(1 << (8 * self.itemsize - 1)) if self.is_signed else 0

    @property
    def highest(self) -> builtins.bool | int | float:
        """The greatest value."""
        if self.is_float:
            return float("inf")
        if self is DType.bool:
            return True
        return (1 << (8 * self.itemsize - self.is_signed)) - 1

    @property
    def compute(self) -> DType:
        """The type in which values of this type are computed."""
        return DType.f32 if self.is_storage else self

    @property
    def torch(self) -> torch.dtype:
        """torch's name for this type."""
        return _TO_TORCH[self]


_BITS = re.compile(r"[a-z]+(\d+)")
_BYTES = {d: int(found.group(1)) // 8 if (found := _BITS.match(d.value)) else 1 for d in DType}

_TO_TORCH: dict[DType, torch.dtype] = {
    DType.f32: torch.float32,
    DType.f64: torch.float64,
    DType.bf16: torch.bfloat16,
    DType.f16: torch.float16,
    DType.f8e4m3: torch.float8_e4m3fn,
    DType.f8e5m2: torch.float8_e5m2,
    DType.f8e4m3fnuz: torch.float8_e4m3fnuz,
    DType.f8e5m2fnuz: torch.float8_e5m2fnuz,
    DType.i8: torch.int8,
    DType.i16: torch.int16,
    DType.i32: torch.int32,
    DType.i64: torch.int64,
    DType.u8: torch.uint8,
    DType.u16: torch.uint16,
    DType.u32: torch.uint32,
    DType.u64: torch.uint64,
    DType.bool: torch.bool,
}
_FROM_TORCH = {t: d for d, t in _TO_TORCH.items()}


def from_torch(dtype: torch.dtype) -> DType | None:
    """The IR type of a torch dtype; None for those the IR does not have: complex, quantised, and the
    floating-point types that eager mode itself only moves and converts (``float8_e8m0fnu``,
    ``float4_e2m1fn_x2``)."""
    return _FROM_TORCH.get(dtype)


@cache
def e4m3_saturates() -> bool:
    """Whether this torch makes the largest number of what is too large for ``float8_e4m3fn``, or NaN, as
    older releases do."""
    found = torch.tensor([1e9], dtype=torch.float32, device="cpu").to(torch.float8_e4m3fn)
    return not found.float().isnan().item()
