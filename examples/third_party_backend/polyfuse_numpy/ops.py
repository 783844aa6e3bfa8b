"""Scalar operations as NumPy text. `{0}`, `{1}` are the operands; what is missing here is refused."""

from __future__ import annotations

from polyfuse.plugin import DType

TYPES: dict[DType, str] = {
    DType.f32: "float32",
    DType.f64: "float64",
    DType.f16: "float16",
    DType.bool: "bool_",
    **{
        DType(f"{sign}{bits}"): f"{word}{bits}"
        for sign, word in (("i", "int"), ("u", "uint"))
        for bits in (8, 16, 32, 64)
    },
}
"""NumPy's names of types. There is no bfloat16."""

_SAME_NAME = (
    *(
        "sqrt",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
    ),
    *("floor", "ceil", "trunc", "copysign", "nextafter", "hypot", "minimum", "maximum", "fmin", "fmax"),
    *("isnan", "isinf", "signbit", "where", "bitwise_and", "bitwise_or", "bitwise_xor"),
)

_OTHER_NAME = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "atan2": "arctan2",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "round": "rint",
    "pow": "power",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "neg": "negative",
    "abs": "absolute",
    "bitwise_not": "invert",
}

OPS: dict[str, str] = {
    **{name: f"np.{name}" for name in _SAME_NAME},
    **{name: f"np.{numpy}" for name, numpy in _OTHER_NAME.items()},
    **{name: name for name in ("rsqrt", "reciprocal", "sigmoid", "sign", "erf", "erfc", "fma")},
    **{name: name for name in ("trunc_div", "floor_div", "remainder", "fmod")},
}
"""Operation -> function; names without `np.` are in `runtime`."""

REDUCTIONS = ("sum", "prod", "min", "max", "any", "all", "xor_sum", "welford", "online_softmax")
SCANS = ("sum", "prod")
MODES = ("set", "add", "mul", "min", "max", "check")


def constant(value: object, dtype: DType) -> str:
    """A constant of a type. Text keeps NaN and infinities."""
    shown = repr(str(float(value))) if dtype.is_float else repr(value)  # type: ignore[arg-type]
    return f"np.{TYPES[dtype]}({shown})"
