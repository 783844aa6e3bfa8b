"""Scalar operations and constants as C++ text over the functions of the vector layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse_cpp.prelude import features_for

_PRICES: Mapping[int, tuple[str, ...]] = {
    0: ("const", "index", "bitcast"),
    1: ("cast", "reduce"),
    2: ("load", "store"),
    4: ("div", "sqrt", "reciprocal", "scan"),
    6: ("rsqrt",),
    10: ("exp2",),
    12: ("floor_div", "trunc_div", "remainder", "fmod", "exp"),
    14: ("log", "log2", "log10"),
    16: ("sigmoid",),
    20: ("erf", "tanh"),
    40: ("pow",),
}
"""Rough prices of operations on one vector, in additions; 24 for other slow ones, 1 for the rest."""

_PRICE_OF = {op: price for price, ops in _PRICES.items() for op in ops}


def cost_of(op: str) -> int:
    """Rough price of an operation, in additions."""
    return _PRICE_OF.get(op, 24 if op in SCALAR_OPS and SCALAR_OPS[op].slow else 1)


def scalar_type(dtype: DType) -> str:
    """C++ type of a value: floats of 16 and 8 bits are held as f32."""
    return dtype.compute.value


def vector_type(dtype: DType) -> str:
    """C++ type of a vector of values."""
    return "vmask" if dtype is DType.bool else f"v{dtype.compute.value}"


def literal(value: bool | int | float, dtype: DType) -> str:
    """A constant with its type, exact to the last bit."""
    if dtype is DType.bool:
        return "true" if value else "false"
    kind = scalar_type(dtype)
    if not dtype.is_float:
        whole = int(value)
        if dtype is DType.i64 and whole == -(1 << 63):
            return "i64(-9223372036854775807LL - 1)"
        suffix = "" if abs(whole) < 1 << 31 else "ULL" if whole >= 1 << 63 else "LL"
        return f"{kind}({whole}{suffix})"
    number = float(value)
    if math.isnan(number):
        return f'{kind}(__builtin_nan(""))'
    if math.isinf(number):
        return f"{kind}({'-' if number < 0 else ''}__builtin_inf())"
    plain = repr(number)
    return f"{kind}({plain})" if "e" in plain or "." in plain else f"{kind}({plain}.0)"


def unsupported_op(op: str, dtype: DType) -> str:
    """Why the vector layer lacks an operation on a type, or an empty text."""
    if op in ("const", "index", "load", "cast", "bitcast", "size"):
        return ""
    row = SCALAR_OPS.get(op)
    if row is None:
        return f"the C++ code generator has no operation {op}"
    if dtype not in row.types:
        return f"{op} is not defined on {dtype}"
    if row.slow and not features_for(op, str(dtype)):
        return f"the vector layer has no {op}"
    return ""
