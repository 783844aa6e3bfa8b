"""Scalar operations on constants, computed at compile time exactly as the operation would."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

from polyfuse.ir.expr import Expr, const
from polyfuse.ir.types import DType

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
}


def round_f32(value: float) -> float:
    """`value` rounded to single precision."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def round_half(value: float, dtype: DType) -> float:
    """`value` rounded to a storage type, to even on ties."""
    if dtype.is_eight_bit_float:
        return _round_eight_bits(value, dtype)
    if dtype is DType.f16:
        try:
            return float(struct.unpack("e", struct.pack("e", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    single = round_f32(value)
    if single != single or math.isinf(single):
        return single
    bits = struct.unpack("I", struct.pack("f", single))[0]
    bits += 0x7FFF + ((bits >> 16) & 1)
    return float(struct.unpack("f", struct.pack("I", bits & 0xFFFF0000))[0])


def _round_eight_bits(value: float, dtype: DType) -> float:
    # torch's conversion is the definition, overflow included
    import torch

    return float(torch.tensor(value, dtype=torch.float32).to(dtype.torch).float().item())


def fold(op: str, args: tuple[Expr, ...]) -> Expr | None:
    """The constant that `op` of constants is; None where it is not worth knowing or not exactly known here.

    Sums, differences and products of single-precision numbers are rounded correctly when they are computed in
    double precision and rounded once more, so the result has the bits that the machine would give.
    """
    dtype = args[0].dtype
    values = [a.value for a in args]
    if len(args) == 2 and op in _COMPARISONS:
        return const(_COMPARISONS[op](*values), DType.bool)
    if op in _ARITHMETIC and dtype is not DType.bool:
        return _number(_ARITHMETIC[op](*values), dtype)
    if op in _BITS and not dtype.is_float:
        return const(_BITS[op](*values), dtype)
    if op == "bitwise_not" and not dtype.is_float:
        return const(not values[0] if dtype is DType.bool else ~values[0], dtype)
    if op == "neg":
        return const(-values[0], dtype)
    if op == "abs":
        return const(abs(values[0]), dtype)
    if op == "div" and values[1] != 0.0:
        return _number(_divide(values[0], values[1]), dtype)
    if op in ("minimum", "maximum") and not any(v != v for v in values):
        return const((min if op == "minimum" else max)(values), dtype)
    if op in ("floor_div", "remainder") and dtype.is_integer and values[1] != 0:
        return const(values[0] // values[1] if op == "floor_div" else values[0] % values[1], dtype)
    return None


def _divide(a: float, b: float) -> float:
    try:
        return a / b
    except OverflowError:
        return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _number(value: Any, dtype: DType) -> Expr:
    return const(round_f32(value) if dtype is DType.f32 else value, dtype)
