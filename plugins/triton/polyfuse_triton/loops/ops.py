"""Scalar operations as Triton text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from polyfuse.ir.ops import RANDOM, SCALAR_OPS
from polyfuse.ir.types import DType
from polyfuse.ir.types import e4m3_saturates as _saturates
from polyfuse.kit import INFIX
from polyfuse_triton.dtypes import triton_type

_BOOL: Mapping[str, str] = MappingProxyType(
    {
        "eq": "~({0} ^ {1})",
        "ne": "{0} ^ {1}",
        "lt": "~{0} & {1}",
        "le": "~{0} | {1}",
        "gt": "{0} & ~{1}",
        "ge": "{0} | ~{1}",
        "bitwise_not": "~{0}",
    }
)
_INTEGER: Mapping[str, str] = MappingProxyType(
    {
        "floor_div": "int_floor_div({0}, {1})",
        "trunc_div": "int_trunc_div({0}, {1})",
        "remainder": "int_remainder({0}, {1})",
        "fmod": "int_fmod({0}, {1})",
        "minimum": "tl.minimum({0}, {1})",
        "maximum": "tl.maximum({0}, {1})",
        "neg": "0 - {0}",
        "abs": "tl.abs({0})",
        "sign": "sign({0})",
        "bitwise_not": "~{0}",
        "shift_left": "shift_left({0}, {1})",
        "shift_right": "shift_right({0}, {1})",
    }
)
_LIBDEVICE = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "rsqrt"),
    *("floor", "ceil", "trunc"),
)
_LIBDEVICE_OF_TWO = ("atan2", "hypot", "pow", "fmod", "copysign")
LIBDEVICE = (*_LIBDEVICE, *_LIBDEVICE_OF_TWO)
"""Operations that are functions of CUDA's libdevice under their own names."""
_FLOAT: Mapping[str, str] = MappingProxyType(
    {
        **{name: f"libdevice.{name}({{0}})" for name in _LIBDEVICE},
        **{name: f"libdevice.{name}({{0}}, {{1}})" for name in _LIBDEVICE_OF_TWO},
        "fma": "{0} * {1} + {2}",
        "floor_div": "float_floor_div({0}, {1})",
        "trunc_div": "libdevice.trunc(divide({0}, {1}))",
        "remainder": "float_remainder({0}, {1})",
        "minimum": "combine_min({0}, {1})",
        "maximum": "combine_max({0}, {1})",
        "fmin": "tl.minimum({0}, {1})",
        "fmax": "tl.maximum({0}, {1})",
        # a zero keeps its sign
        "neg": "{0} * -1.0",
        "abs": "tl.abs({0})",
        "sign": "sign({0})",
        "nextafter": "nextafter({0}, {1})",
        "round": "libdevice.rint({0})",
        "digamma": "digamma({0})",
        "sigmoid": "sigmoid({0})",
        "isnan": "{0} != {0}",
        "isinf": 'tl.abs({0}) == float("inf")',
    }
)
_BY_WIDTH: Mapping[tuple[str, DType], str] = MappingProxyType(
    {
        ("div", DType.f32): "tl.div_rn({0}, {1})",
        ("div", DType.f64): "{0} / {1}",
        ("reciprocal", DType.f32): "tl.div_rn(1.0, {0})",
        ("reciprocal", DType.f64): "1.0 / {0}",
        ("sqrt", DType.f32): "tl.sqrt_rn({0})",
        ("sqrt", DType.f64): "libdevice.sqrt({0})",
        ("signbit", DType.f32): "{0}.to(tl.int32, bitcast=True) < 0",
        ("signbit", DType.f64): "{0}.to(tl.int64, bitcast=True) < 0",
    }
)


def is_infix(op: str, dtype: DType) -> bool:
    """Whether an operation is an operator, so that one operand may be a plain number."""
    return op in INFIX and dtype is not DType.bool


def _template(op: str, dtype: DType) -> str | None:
    """The text of an operation with its operands numbered; None where there is none."""
    if op == "where":
        return "tl.where({0}, {1}, {2})"
    if dtype is DType.bool and op in _BOOL:
        return _BOOL[op]
    if op in INFIX:
        return f"{{0}} {INFIX[op]} {{1}}"
    if (op, dtype) in _BY_WIDTH:
        return _BY_WIDTH[op, dtype]
    return _FLOAT.get(op) if dtype.is_float else _INTEGER.get(op)


def operation_text(op: str, dtype: DType, operands: Sequence[str]) -> str:
    """A scalar operation on operands of a type (`where`: of its last)."""
    template = _template(op, dtype)
    assert template is not None, f"{op} on {dtype} was claimed"
    return template.format(*operands)


def unsupported_op(op: str, dtype: DType, kind: str = "") -> str:
    """Why there is no text for an operation on a type, or an empty text."""
    if op in ("const", "index", "size", "load", "cast", "bitcast"):
        return ""
    if op == "rand":
        return "" if kind in RANDOM else f"random numbers of kind {kind} are unknown"
    row = SCALAR_OPS.get(op)
    if row is None or dtype not in row.types or _template(op, dtype) is None:
        return f"{op} is not defined on {dtype}"
    return ""


def _steps(source: DType, target: DType) -> tuple[DType, ...]:
    """Types through which a value is converted, as eager mode does it."""
    if source.is_float and source.itemsize < 4 and target is not DType.f32:
        return (DType.f32, *_steps(DType.f32, target))
    if target.is_float and target.itemsize < 4:
        return (target,) if source is DType.f32 else (DType.f32, target)
    if source.is_float and target.is_integer and target.itemsize < 4:
        # through a wider integer, so that what does not fit wraps
        return (DType.i32 if target.is_signed else DType.i64, target)
    return (target,)


def cast_text(text: str, source: DType, target: DType) -> str:
    """A value converted to another type."""
    if target is DType.bool:
        if source.is_float and source.itemsize < 4:
            text = f"{text}.to(tl.float32)"
        return f"{text} != 0"
    for step in _steps(source, target):
        if step is DType.f8e4m3:
            text = f"{'to_f8e4m3' if _saturates() else 'to_f8e4m3_nan'}({text})"
        elif step is DType.f8e5m2:
            text = f"to_f8e5m2({text})"
        else:
            text = f"{text}.to({triton_type(step)})"
    return text
