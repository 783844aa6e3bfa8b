"""How the IR's types and constants are written in Triton."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from polyfuse.ir.types import DType

_TRITON: Mapping[str, str] = MappingProxyType(
    {
        "f32": "float32",
        "f64": "float64",
        "bf16": "bfloat16",
        "f16": "float16",
        "f8e4m3": "float8e4nv",
        "f8e5m2": "float8e5",
        "i8": "int8",
        "i16": "int16",
        "i32": "int32",
        "i64": "int64",
        "u8": "uint8",
        "u16": "uint16",
        "u32": "uint32",
        "u64": "uint64",
        "bool": "int1",
    }
)
_SIGNATURE: Mapping[str, str] = MappingProxyType(
    {"f32": "fp32", "f64": "fp64", "f16": "fp16", "f8e4m3": "fp8e4nv", "f8e5m2": "fp8e5", "bool": "i1"}
)

INT_BITS: Mapping[int, str] = MappingProxyType({1: "tl.int8", 2: "tl.int16", 4: "tl.int32", 8: "tl.int64"})
"""The signed integer type of each width in bytes."""


def triton_type(dtype: DType) -> str:
    """The type of a value, as the text of a kernel names it."""
    return f"tl.{_TRITON[dtype.value]}"


def pointer_type(dtype: DType) -> str:
    """The type of a buffer argument, as signatures name it."""
    return f"*{_SIGNATURE.get(dtype.value, dtype.value)}"


def inline_literal(value: bool | int | float, dtype: DType) -> str | None:
    """A constant as a plain number, which takes the type of the operand beside it; None where it cannot.

    Infinities, NaN and the negative zero have no such text, and integers beyond 32 bits would not fit
    beside a value that is held in 32.
    """
    if dtype is DType.bool:
        return None
    if not dtype.is_float:
        whole = int(value)
        return str(whole) if abs(whole) < 1 << 31 else None
    number = float(value)
    if not math.isfinite(number) or (number == 0 and math.copysign(1, number) < 0):
        return None
    return repr(number)


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant with its type, exact to the last bit."""
    kind = triton_type(dtype)
    if dtype is DType.bool:
        return f"tl.full((), {bool(value)}, tl.int1)"
    if not dtype.is_float:
        return f"tl.full((), {int(value)}, {kind})"
    number = float(value)
    if number == 0 and math.copysign(1, number) < 0:
        # a zero is made without its sign
        bits = 8 * dtype.itemsize
        return f"tl.full((), {-(1 << (bits - 1))}, tl.int{bits}).to({kind}, bitcast=True)"
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    return f"tl.full((), {text}, {kind})"
