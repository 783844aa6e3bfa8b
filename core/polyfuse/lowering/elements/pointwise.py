"""Element by element operators. Regular ones are rows of tables; the others are short functions over
expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.expr import Expr, const
from polyfuse.ir.types import DType, from_torch
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.indexing.index_checks import check_divisor
from polyfuse.lowering.promote import compute_type, result_type
from polyfuse.lowering.registry import lowers
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.rewrite import cast, make, scalar, where

Body = Callable[..., Expr]
Through = DType | None


def elementwise(
    ctx: LoweringContext,
    node: Any,
    operands: Sequence[Any],
    body: Body,
    compute: DType | None = None,
    through: Through | tuple[Through, ...] = None,
) -> TensorValue:
    """``body`` of broadcast operands, each converted to `compute` (by default the type the result is computed
    in), by way of `through` where that is given, for all of them or for each."""
    result = ctx.template(node.meta["val"])
    axes = axes_of(result.size)
    kind = compute or result.kernel_type.compute
    ways = through if isinstance(through, tuple) else (through,) * len(operands)
    values = [ctx.operand(o, axes, kind, result.device, w) for o, w in zip(operands, ways, strict=True)]
    return ctx.lazy(result, body(*values))


def common(operands: Sequence[Any]) -> DType | None:
    """The type that eager mode converts operands to before it computes: half precision rounds numbers too."""
    return from_torch(result_type(operands))


def promoted(operands: Sequence[Any]) -> DType:
    """The type that operands are compared in."""
    return compute_type(result_type(operands))


# Tables.

SAME = ("neg", "abs", "sign", "floor", "ceil", "trunc", "round", "bitwise_not")
"""One operand, the result of its type."""

TO_FLOAT = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sigmoid"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("erf", "erfc", "erfinv", "lgamma", "digamma"),
)
"""One operand; integers become the default float first."""

BINARY: dict[str, str] = {
    "mul": "mul.Tensor mul.Scalar",
    "maximum": "maximum.default",
    "minimum": "minimum.default",
    "fmin": "fmin.default",
    "fmax": "fmax.default",
    "div": "div.Tensor div.Scalar true_divide.Tensor",
    "floor_div": "floor_divide.default floor_divide.Scalar",
    "remainder": "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor",
    "fmod": "fmod.Tensor fmod.Scalar",
    "atan2": "atan2.default",
    "hypot": "hypot.default",
    "copysign": "copysign.Tensor copysign.Scalar",
    "nextafter": "nextafter.default",
    "bitwise_and": "bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor __and__.Tensor",
    "bitwise_or": "bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor __or__.Tensor",
    "bitwise_xor": "bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor __xor__.Tensor",
    "shift_left": "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar __lshift__.Tensor "
    "__lshift__.Scalar",
    "shift_right": "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar __rshift__.Tensor "
    "__rshift__.Scalar",
}
"""Two operands, computed in the result's type."""

STEPS = frozenset({"remainder", "fmod", "floor", "ceil", "trunc", "round", "sign"})
"""Where the rounding of an operand may move the result by a step, as in comparisons: it is rounded as eager
mode does it."""

ROUNDED = frozenset({"atan2", "hypot"})
"""Others that eager mode converts operands to the common type for; products and quotients it does not."""

DIVISIONS = ("floor_div", "remainder", "fmod")

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _register_tables() -> None:
    for name in SAME:
        lowers(f"aten.{name}.default")(_same(name))
    for name in TO_FLOAT:
        lowers(f"aten.{name}.default")(_plain(name))
    for op, overloads in BINARY.items():
        lowers(*(f"aten.{o}" for o in overloads.split()))(_plain(op))
    for name in COMPARISONS:
        lowers(f"aten.{name}.Tensor", f"aten.{name}.Scalar")(_comparison(name))
    for name, op in {"and": "bitwise_and", "or": "bitwise_or", "xor": "ne"}.items():
        lowers(f"aten.logical_{name}.default")(_logical(op))
    for names, body in BODIES.items():
        lowers(*(f"aten.{name}" for name in names.split()))(_of_body(body))


def _of_body(body: Body) -> Callable[..., TensorValue]:
    return lambda ctx, node, *operands: elementwise(ctx, node, operands, body)


def _plain(op: str) -> Callable[..., TensorValue]:
    def lower(ctx: LoweringContext, node: Any, *operands: Any) -> TensorValue:
        if op == "nextafter" and node.meta["val"].dtype.itemsize < 4:
            raise UnsupportedError("no kernel finds neighbours in half precision")
        through: Through | tuple[Through, ...] = None
        if op in STEPS or (op in ROUNDED and ctx.eager_rounding):
            through = common(operands)
        elif op == "floor_div":
            through = (common(operands), _own_type(operands[1]))
        if op in DIVISIONS:
            _check_division(ctx, node, operands[1])
        if op in ("fmin", "fmax") and node.meta["val"].dtype == torch.bfloat16:
            # of two zeros eager mode's loop over bf16 takes the second, those over other types the first
            operands = operands[::-1]
        return elementwise(ctx, node, operands, lambda *args: make(op, *args), through=through)

    return lower


def _check_division(ctx: LoweringContext, node: Any, divisor: Any) -> None:
    result = ctx.template(node.meta["val"])
    kind, axes = result.kernel_type.compute, axes_of(result.size)
    if kind.is_integer:
        check_divisor(ctx, ctx.operand(divisor, axes, kind, result.device), axes, result.device)


def _own_type(operand: Any) -> DType | None:
    """The type of a divisor: eager mode keeps the precision of single numbers."""
    return operand.dtype if isinstance(operand, TensorValue) else None


def _same(op: str) -> Callable[..., TensorValue]:
    def body(x: Expr) -> Expr:
        if op in ("floor", "ceil", "trunc", "round") and not x.dtype.is_float:
            return x
        if op == "abs" and not x.dtype.is_signed:
            return x
        if op == "sign" and not x.dtype.is_signed:
            return cast(make("ne", x, const(0, x.dtype)), x.dtype)
        return make(op, x)

    def lower(ctx: LoweringContext, node: Any, x: TensorValue) -> TensorValue:
        return elementwise(ctx, node, (x,), body, through=x.dtype if op in STEPS else None)

    return lower


def _comparison(op: str) -> Callable[..., TensorValue]:
    def lower(ctx: LoweringContext, node: Any, a: Any, b: Any) -> TensorValue:
        operands = (a, b)
        kind = common(operands)
        # no sign depends on the rounding to a type with the exponents of single precision
        through = None if kind is DType.bf16 and _is_zero(b) else kind
        return elementwise(ctx, node, operands, lambda x, y: make(op, x, y), promoted(operands), through)

    return lower


def _is_zero(operand: Any) -> bool:
    return isinstance(operand, (int, float)) and operand == 0


def truth(x: Expr) -> Expr:
    """Whether `x` is not zero."""
    return x if x.dtype is DType.bool else make("ne", x, const(0, x.dtype))


def _logical(op: str) -> Callable[..., TensorValue]:
    def lower(ctx: LoweringContext, node: Any, a: Any, b: Any) -> TensorValue:
        result = ctx.template(node.meta["val"])
        axes = axes_of(result.size)
        x, y = (truth(ctx.operand(v, axes, promoted((v,)), result.device)) for v in (a, b))
        return ctx.lazy(result, make(op, x, y))

    return lower


# Arithmetic with options.


@lowers(*(f"aten.{name}.{other}" for name in ("add", "sub", "rsub") for other in ("Tensor", "Scalar")))
def scaled_sum(ctx: LoweringContext, node: Any, a: Any, b: Any, alpha: Any = 1) -> TensorValue:
    name = str(node.target).split(".")[1]
    op = name.removeprefix("r")
    if name == "rsub":
        a, b = b, a
    through = common((a, b)) if ctx.eager_rounding else None
    if isinstance(alpha, (int, float)) and alpha == 1:
        return elementwise(ctx, node, (a, b), lambda x, y: make(op, x, y), through=through)
    return elementwise(
        ctx, node, (a, b, alpha), lambda x, y, k: make(op, x, make("mul", y, k)), through=through
    )


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(
    ctx: LoweringContext, node: Any, a: Any, b: Any, rounding_mode: str | None = None
) -> TensorValue:
    if rounding_mode != "trunc":
        return _plain("div" if rounding_mode is None else "floor_div")(ctx, node, a, b)
    kind = common((a, b))
    _check_division(ctx, node, b)
    rounds = kind is not None and kind is not kind.compute and isinstance(b, TensorValue) and b.size != ()

    def body(x: Expr, y: Expr) -> Expr:
        if not rounds or kind is None:
            return make("trunc_div", x, y)
        # eager mode stores the quotient in half precision before it cuts off the fraction
        return make("trunc", cast(cast(make("div", x, y), kind), kind.compute))

    return elementwise(ctx, node, (a, b), body, through=(kind, _own_type(b)))


@lowers("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(ctx: LoweringContext, node: Any, a: Any, b: Any) -> TensorValue:
    result = node.meta["val"]
    if result.dtype.is_floating_point:
        through = common((a, b)) if ctx.eager_rounding else None
        root = _root(b, result)
        if root:
            return elementwise(ctx, node, (a,), lambda x: make(root, x), through=through)
        return elementwise(ctx, node, (a, b), lambda x, y: make("pow", x, y), through=through)
    if isinstance(b, bool) or not isinstance(b, int) or not 0 <= b <= 64 or result.dtype is torch.bool:
        raise UnsupportedError("no kernel computes integer powers with other than small constant exponents")
    exponent = b
    return elementwise(ctx, node, (a,), lambda x: _integer_power(x, exponent))


def _root(exponent: Any, result: torch.Tensor) -> str | None:
    """The root that eager mode computes for this power, if any: not for a tensor, nor for f16 on the CPU.
    They differ at -infinity, whose root is no number, and at -0."""
    if isinstance(exponent, bool | torch.SymBool) or not isinstance(exponent, int | float):
        return None
    if result.dtype is torch.float16 and result.device.type == "cpu":
        return None
    return {0.5: "sqrt", -0.5: "rsqrt"}.get(exponent)


def _integer_power(x: Expr, exponent: int) -> Expr:
    total, square = const(1, x.dtype), x
    while exponent:
        if exponent & 1:
            total = make("mul", total, square)
        exponent >>= 1
        if exponent:
            square = make("mul", square, square)
    return total


@lowers("aten.round.decimals")
def round_decimals(ctx: LoweringContext, node: Any, x: TensorValue, decimals: int = 0) -> TensorValue:
    if not node.meta["val"].dtype.is_floating_point:
        raise UnsupportedError("no kernel rounds decimals of integers")
    scale = 10.0 ** abs(decimals)

    def body(v: Expr) -> Expr:
        factor = scalar(scale, v.dtype)
        there, back = ("mul", "div") if decimals >= 0 else ("div", "mul")
        return make(back, make("round", make(there, v, factor)), factor)

    return elementwise(ctx, node, (x,), body)


@lowers("aten.addcmul.default", "aten.addcdiv.default")
def scaled_term(ctx: LoweringContext, node: Any, a: Any, b: Any, c: Any, *, value: Any = 1) -> TensorValue:
    def body(x: Expr, y: Expr, z: Expr, k: Expr) -> Expr:
        divides = str(node.target) == "aten.addcdiv.default"
        term = make("mul", k, make("div", y, z)) if divides else make("mul", make("mul", k, y), z)
        return make("add", x, term)

    return elementwise(ctx, node, (a, b, c, value), body)


# Tests and choices.


@lowers("aten.isnan.default", "aten.isinf.default", "aten.signbit.default")
def classify(ctx: LoweringContext, node: Any, x: TensorValue) -> TensorValue:
    name = str(node.target).split(".")[1]

    def body(v: Expr) -> Expr:
        if v.dtype.is_float:
            return make(name, v)
        if name == "signbit" and v.dtype.is_integer and v.dtype.is_signed:
            return make("lt", v, const(0, v.dtype))
        return const(False, DType.bool)

    # what is finite in single precision may be infinite in half precision
    return elementwise(ctx, node, (x,), body, promoted((x,)), x.dtype)


@lowers("aten.logical_not.default")
def logical_not(ctx: LoweringContext, node: Any, x: TensorValue) -> TensorValue:
    return elementwise(ctx, node, (x,), lambda v: make("bitwise_not", truth(v)), promoted((x,)))


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def where_(ctx: LoweringContext, node: Any, condition: TensorValue, yes: Any, no: Any) -> TensorValue:
    result = ctx.template(node.meta["val"])
    axes, kind = axes_of(result.size), result.kernel_type.compute
    test = truth(ctx.operand(condition, axes, promoted((condition,)), result.device))
    a, b = (ctx.operand(v, axes, kind, result.device) for v in (yes, no))
    return ctx.lazy(result, where(test, a, b))


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(ctx: LoweringContext, node: Any, x: Any, mask: TensorValue, value: Any) -> TensorValue:
    return where_(ctx, node, mask, value, x)


def _limited(op: str, v: Expr, limit: Expr) -> Expr:
    """`v`, or `limit` where that is the `op` of both; a constant stands first.

    A CPU's instruction gives the second of two equal operands, so that a zero keeps its sign where the
    limit is the other zero, as in eager mode; and that the first operand is not NaN need not be looked at.
    """
    return make(op, limit, v) if limit.op == "const" else make(op, v, limit)


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.clip.default", "aten.hardtanh.default")
def clamp(
    ctx: LoweringContext, node: Any, x: Any, low: Any = None, high: Any = None, **named: Any
) -> TensorValue:
    low, high = named.get("min", low), named.get("max", high)
    if str(node.target) == "aten.hardtanh.default":
        low, high = (-1.0 if low is None else low), (1.0 if high is None else high)
    bounds = [(op, bound) for op, bound in (("maximum", low), ("minimum", high)) if bound is not None]

    def body(v: Expr, *limits: Expr) -> Expr:
        for (op, _), limit in zip(bounds, limits, strict=True):
            v = _limited(op, v, limit)
        return v

    return elementwise(ctx, node, (x, *(b for _, b in bounds)), body)


# Activations that are not decomposed, and others with a body of their own.


@lowers("aten.gelu.default")
def gelu(ctx: LoweringContext, node: Any, x: TensorValue, *, approximate: str = "none") -> TensorValue:
    def exact(v: Expr) -> Expr:
        half, one = const(0.5, v.dtype), const(1.0, v.dtype)
        inner = make("erf", make("mul", v, scalar(math.sqrt(0.5), v.dtype)))
        return make("mul", make("mul", v, half), make("add", one, inner))

    def smooth(v: Expr) -> Expr:
        half, one = const(0.5, v.dtype), const(1.0, v.dtype)
        cube = make("mul", make("mul", v, v), v)
        inner = make(
            "mul",
            scalar(math.sqrt(2 / math.pi), v.dtype),
            make("add", v, make("mul", scalar(0.044715, v.dtype), cube)),
        )
        return make("mul", make("mul", half, v), make("add", one, make("tanh", inner)))

    return elementwise(ctx, node, (x,), exact if approximate == "none" else smooth)


@lowers("aten.elu.default")
def elu(
    ctx: LoweringContext, node: Any, x: TensorValue, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1
) -> TensorValue:
    def body(v: Expr, a: Expr, s: Expr, k: Expr) -> Expr:
        # zero is not negative: an infinite alpha leaves it as it is
        negative = make("mul", make("expm1", make("mul", v, k)), make("mul", a, s))
        return where(make("lt", v, const(0.0, v.dtype)), negative, make("mul", v, s))

    return elementwise(ctx, node, (x, alpha, scale, input_scale), body)


@lowers("aten.leaky_relu.default")
def leaky_relu(ctx: LoweringContext, node: Any, x: TensorValue, slope: Any = 0.01) -> TensorValue:
    return elementwise(ctx, node, (x, slope), lambda v, k: where(_is_positive(v), v, make("mul", v, k)))


def _is_positive(v: Expr) -> Expr:
    return make("gt", v, const(0.0, v.dtype))


def _silu(v: Expr) -> Expr:
    return make("div", v, make("add", const(1.0, v.dtype), make("exp", make("neg", v))))


def _angle(v: Expr) -> Expr:
    """Of real numbers: pi for those below zero."""
    zero = const(0.0, v.dtype)
    angle = where(make("lt", v, zero), scalar(math.pi, v.dtype), zero)
    return where(make("isnan", v), v, angle)


def _lerp(a: Expr, b: Expr, w: Expr) -> Expr:
    span = make("sub", b, a)
    low = make("add", a, make("mul", w, span))
    high = make("sub", b, make("mul", span, make("sub", const(1.0, w.dtype), w)))
    return where(make("lt", make("abs", w), const(0.5, w.dtype)), low, high)


BODIES: dict[str, Body] = {
    "square.default": lambda v: make("mul", v, v),
    "positive.default": lambda v: v,
    "relu.default": lambda v: _limited("maximum", v, const(0, v.dtype)),
    "clamp_min.default clamp_min.Tensor": lambda v, limit: _limited("maximum", v, limit),
    "clamp_max.default clamp_max.Tensor": lambda v, limit: _limited("minimum", v, limit),
    "silu.default": _silu,
    "angle.default": _angle,
    "lerp.Scalar lerp.Tensor": _lerp,
}
"""Operators whose arguments are all operands, with what becomes of these."""


@lowers("aten.polygamma.default")
def polygamma(ctx: LoweringContext, node: Any, order: int, x: TensorValue) -> TensorValue:
    if order != 0:
        raise UnsupportedError("no kernel computes derivatives of the digamma function")
    return elementwise(ctx, node, (x,), lambda v: make("digamma", v))


@lowers("prims.fma.default")
def fma(ctx: LoweringContext, node: Any, a: Any, b: Any, c: Any) -> TensorValue:
    return elementwise(ctx, node, (a, b, c), lambda x, y, z: make("fma", x, y, z))


_register_tables()
