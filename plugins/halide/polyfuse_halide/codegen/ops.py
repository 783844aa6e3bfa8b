"""Scalar operations as calls of the library's functions; what is missing here is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from polyfuse.ir.ops import RANDOM, SCALAR_OPS
from polyfuse.ir.types import DType

_SAME = (
    *(
        "add",
        "sub",
        "mul",
        "floor_div",
        "trunc_div",
        "remainder",
        "fmod",
        "minimum",
        "maximum",
        "fmin",
        "fmax",
    ),
    *(
        "copysign",
        "nextafter",
        "reciprocal",
        "rsqrt",
        "where",
        "sign",
        "signbit",
        "shift_left",
        "shift_right",
    ),
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "digamma"),
    *("sigmoid", "atan2", "hypot"),
)
_OTHER = {
    "fma": "fused",
    "div": "divide",
    "pow": "power",
    "neg": "negate",
    "abs": "absolute",
    "sqrt": "square_root",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "round_even",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "isnan": "is_nan",
    "isinf": "is_inf",
    "bitwise_and": "bit_and",
    "bitwise_or": "bit_or",
    "bitwise_xor": "bit_xor",
    "bitwise_not": "bit_not",
}

FUNCTION_OF: Mapping[str, str] = MappingProxyType({**{name: name for name in _SAME}, **_OTHER})
"""The library's function for each scalar operation."""

MATH = frozenset(name for name in _SAME if name in SCALAR_OPS and SCALAR_OPS[name].slow)

_NOT_IN_F64 = ("floor_div", "remainder", "fmod", "erf", "erfc", "erfinv", "lgamma", "digamma")

REDUCTIONS = frozenset(
    ("sum", "prod", "min", "max", "any", "all", "xor_sum", "argmin", "argmax", "welford", "online_softmax")
)
SCANS = frozenset(("sum", "prod", "min", "max", "logsumexp"))

COST: Mapping[str, int] = MappingProxyType(
    {
        "const": 0,
        "index": 0,
        "load": 2,
        "store": 2,
        "div": 4,
        "sqrt": 4,
        "rsqrt": 6,
        "exp": 12,
        "erf": 20,
        "tanh": 20,
    }
)
"""Rough price of an operation on one vector, in additions."""


def constant_text(value: bool | int | float, dtype: DType) -> str:
    """A constant of a type. NaN and infinities are written by name."""
    if not dtype.is_float:
        return f'constant({int(value)}, "{dtype}")'
    number = float(value)
    shown = repr(number) if number - number == 0 else f'float("{number}")'
    return f'constant({shown}, "{dtype}")'


def call_text(op: str, args: Sequence[str], numbers: Sequence[float | None]) -> str:
    """A scalar operation as a call; `numbers` are those of its operands that are constants.

    A limit that is a constant is one instruction, because it is known to be a number.
    """
    if op in ("minimum", "maximum"):
        limit = "at_least" if op == "maximum" else "at_most"
        first, second = numbers
        if first is not None and first == first:
            return f"{limit}({args[1]}, {args[0]})"
        if second is not None and second == second and (second or math.copysign(1.0, second) > 0):
            return f"{limit}({args[0]}, {args[1]}, positive_zero={second == 0})"
    return f"{FUNCTION_OF[op]}({', '.join(args)})"


def unsupported_op(op: str, dtype: DType, kind: str = "") -> str:
    """Why there is no function for an operation on a type, or an empty text."""
    if op in ("const", "index", "load", "cast", "bitcast", "size"):
        return ""
    if op == "rand":
        return "" if kind in RANDOM else f"random numbers of kind {kind} are unknown"
    row = SCALAR_OPS.get(op)
    if row is None or op not in FUNCTION_OF or dtype not in row.types:
        return f"Halide has no operation {op} on {dtype}"
    if dtype is DType.f64 and op in _NOT_IN_F64:
        return f"Halide has no {op} of 64-bit numbers"
    return ""
