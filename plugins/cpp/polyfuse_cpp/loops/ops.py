"""Scalar operations and constants as C++ text over the functions of the vector layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse_cpp.prelude import features_for

__all__ = [
    "COST",
    "FUNCTION_OF",
    "cost_of",
    "literal",
    "scalar_type",
    "unsupported_op",
    "vector_type",
]

FUNCTION_OF: Mapping[str, str] = MappingProxyType({name: name for name in SCALAR_OPS})
"""The function of ``namespace pf`` for each scalar operation: the layer uses the operations' own names."""

COST: Mapping[str, int] = MappingProxyType(
    {
        "const": 0,
        "index": 0,
        "cast": 1,
        "bitcast": 0,
        "load": 2,
        "store": 2,
        "div": 4,
        "sqrt": 4,
        "rsqrt": 6,
        "reciprocal": 4,
        "floor_div": 12,
        "trunc_div": 12,
        "remainder": 12,
        "fmod": 12,
        "exp": 12,
        "exp2": 10,
        "sigmoid": 16,
        "log": 14,
        "log2": 14,
        "log10": 14,
        "pow": 40,
        "erf": 20,
        "tanh": 20,
        "scan": 4,
        "reduce": 1,
    }
)
"""Rough price of an operation on one vector, in additions; 24 for other slow ones, 1 for the rest."""


def cost_of(op: str) -> int:
    """Rough price of an operation, in additions."""
    known = COST.get(op)
    if known is not None:
        return known
    return 24 if op in SCALAR_OPS and SCALAR_OPS[op].slow else 1


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
