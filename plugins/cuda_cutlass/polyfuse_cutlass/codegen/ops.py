"""Scalar operations, casts and constants as CUDA text."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.ir.types import e4m3_saturates as _saturates
from polyfuse.kit import INFIX

_OWN = frozenset(
    (
        *("floor_div", "trunc_div", "remainder", "fmod", "minimum", "maximum", "sign", "shift_left"),
        *("shift_right", "digamma", "sigmoid", "nextafter", "signbit", "isnan", "isinf"),
    )
)
"""Operations that are functions of `math.cuh`, for every type that they have."""
_SAME = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "atan2", "hypot"),
    *("pow", "copysign", "fma", "sqrt", "rsqrt", "floor", "ceil", "trunc", "fmin", "fmax"),
)
_LIBRARY: Mapping[str, str] = MappingProxyType(
    {
        **dict(zip(_SAME, _SAME, strict=True)),
        "round": "rint",
        "abs": "fabs",
    }
)
"""Functions of CUDA on floating-point numbers; those of f32 end in `f`."""


def operation_text(op: str, dtype: DType, operands: Sequence[str]) -> str:
    """A scalar operation on operands of a type (`where`: of its last)."""
    if op == "where":
        return f"{operands[0]} ? {operands[1]} : {operands[2]}"
    if op in INFIX:
        joined = f" {INFIX[op]} ".join(operands)
        # arithmetic on narrow integers is done in 32 bits
        return f"({dtype.value})({joined})" if op in ("add", "sub", "mul") and dtype.is_integer else joined
    if op == "neg":
        return f"-{operands[0]}" if dtype.is_float else f"({dtype.value})(0 - {operands[0]})"
    if op == "bitwise_not":
        return f"!{operands[0]}" if dtype is DType.bool else f"({dtype.value})~{operands[0]}"
    if op == "div":
        return f"{operands[0]} / {operands[1]}"
    if op == "reciprocal":
        return f"({dtype.value})1 / {operands[0]}"
    if op == "abs" and dtype.is_integer:
        return f"({dtype.value})({operands[0]} < 0 ? 0 - {operands[0]} : {operands[0]})"
    if op in _OWN:
        return f"op_{op}({', '.join(operands)})"
    suffix = "f" if dtype is DType.f32 else ""
    return f"{_LIBRARY[op]}{suffix}({', '.join(operands)})"


def unsupported_op(op: str, dtype: DType) -> str:
    """Why there is no text for an operation on a type, or an empty text."""
    row = SCALAR_OPS.get(op)
    if row is None or dtype not in row.types:
        return f"{op} is not defined on {dtype}"
    known = op in INFIX or op in _OWN or op in _LIBRARY
    return "" if known or op in ("where", "neg", "bitwise_not", "div", "reciprocal") else f"there is no {op}"


def cast_text(text: str, source: DType, target: DType) -> str:
    """A value converted to another type."""
    if source is target:
        return text
    if source.is_storage:
        return cast_text(f"value_of({text})", DType.f32, target)
    if target is DType.f8e4m3:
        return f"f8e4m3_{'largest' if _saturates() else 'nan'}((f32){text})"
    if target.is_storage:
        return f"memory_form<{target.value}>::of((f32){text})"
    if target is DType.bool:
        return f"{text} != 0"
    if source.is_float and target.is_integer and target.itemsize < 4:
        # through a wider integer, so that what does not fit wraps
        text = f"({'i32' if target.is_signed else 'i64'}){text}"
    return f"({target.value}){text}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant with its type, exact to the last bit."""
    if dtype is DType.bool:
        return "true" if value else "false"
    if dtype.is_storage:
        return cast_text(literal(float(value), DType.f32), DType.f32, dtype)
    if dtype.is_integer:
        whole = int(value)
        if whole == -(1 << 63):
            return "(i64)0x8000000000000000ULL"
        return f"({dtype.value}){whole}{'ULL' if whole >= 1 << 63 else 'LL'}"
    number = float(value)
    if dtype is DType.f32:
        try:
            packed = struct.pack("<f", number)
        except OverflowError:
            packed = struct.pack("<f", math.copysign(math.inf, number))
        (number,), (bits,) = struct.unpack("<f", packed), struct.unpack("<I", packed)
        return f"{number.hex()}f" if math.isfinite(number) else f"__uint_as_float({bits:#010x}u)"
    if not math.isfinite(number):
        bits = struct.unpack("<Q", struct.pack("<d", number))[0]
        return f"__longlong_as_double({bits:#018x}LL)"
    return number.hex()
