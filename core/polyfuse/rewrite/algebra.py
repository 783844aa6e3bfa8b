"""Identities of scalar operations that hold for every value: NaN, infinities and signed zeros included.

A row is a function from operands to the simpler expression, or None. What is not here (``x * 0``, ``x - x``,
``x + 0.0``) changes some value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from polyfuse.ir.expr import Expr, apply, const
from polyfuse.ir.types import DType

Rule = Callable[[tuple[Expr, ...]], "Expr | None"]


def is_const(expr: Expr, value: float | int | bool) -> bool:
    """Whether `expr` is the constant `value`, the sign of zero included."""
    if expr.op != "const" or expr.value != value:
        return False
    return (
        value != 0 or not expr.dtype.is_float or math.copysign(1.0, expr.value) == math.copysign(1.0, value)
    )


def _add(args: tuple[Expr, ...]) -> Expr | None:
    a, b = args
    # x + (-0.0) is x for every x, while -0.0 + 0.0 is 0.0
    neutral = -0.0 if a.dtype.is_float else 0
    return a if is_const(b, neutral) else b if is_const(a, neutral) else None


def _sub(args: tuple[Expr, ...]) -> Expr | None:
    a, b = args
    return a if is_const(b, 0.0 if a.dtype.is_float else 0) else None


def _mul(args: tuple[Expr, ...]) -> Expr | None:
    for one, other in (args, args[::-1]):
        if is_const(one, 1):
            return other
        if is_const(one, -1) and one.dtype.is_float:
            return apply("neg", other)
        if one.dtype.is_integer and is_const(one, 0):
            return one
    return None


def _div(args: tuple[Expr, ...]) -> Expr | None:
    a, b = args
    if b.op != "const" or not math.isfinite(b.value):
        return None
    if b.value == 0:
        # the same for every value, and compilers that divide by no constant zero take it
        return apply("mul", a, const(math.copysign(math.inf, b.value), b.dtype))
    if is_const(b, 1):
        return a
    mantissa, exponent = math.frexp(b.value)
    # dividing by a power of two is multiplying by its inverse, exactly, where that inverse is a normal number
    if abs(mantissa) == 0.5 and abs(exponent) < 120:
        return apply("mul", a, const(1.0 / b.value, b.dtype))
    return None


def _pow(args: tuple[Expr, ...]) -> Expr | None:
    x, exponent = args
    if exponent.op != "const":
        return None
    value = exponent.value
    if value == 1:
        return x
    if value == 2:
        return apply("mul", x, x)
    if value == 3:
        return apply("mul", apply("mul", x, x), x)
    if value == -1:
        return apply("reciprocal", x)
    if value == -2:
        return apply("reciprocal", apply("mul", x, x))
    if value == 0:
        return const(1.0, x.dtype)
    return None


def _involution(name: str) -> Rule:
    def rule(args: tuple[Expr, ...]) -> Expr | None:
        return args[0].args[0] if args[0].op == name else None

    return rule


def _idempotent(name: str) -> Rule:
    def rule(args: tuple[Expr, ...]) -> Expr | None:
        return args[0] if args[0].op == name else None

    return rule


def _logic(args: tuple[Expr, ...], neutral: bool) -> Expr | None:
    if args[0] is args[1]:
        return args[0]
    if args[0].dtype is not DType.bool:
        return None
    for one, other in (args, args[::-1]):
        if one.op == "const":
            return other if one.value is neutral else one
    return None


def _same(args: tuple[Expr, ...]) -> Expr | None:
    return args[0] if args[0] is args[1] else None


def _where(args: tuple[Expr, ...]) -> Expr | None:
    condition, yes, no = args
    if condition.op == "const":
        return yes if condition.value else no
    if yes is no:
        return yes
    if condition.op == "bitwise_not":
        return apply("where", condition.args[0], no, yes)
    if yes.dtype is DType.bool and is_const(yes, True) and is_const(no, False):
        return condition
    return None


def _compared(found: bool) -> Rule:
    """Of a value with itself: known, but for what is no number."""

    def rule(args: tuple[Expr, ...]) -> Expr | None:
        known = args[0] is args[1] and not args[0].dtype.is_float
        return const(found, DType.bool) if known else None

    return rule


RULES: dict[str, Rule] = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "pow": _pow,
    "neg": _involution("neg"),
    "bitwise_not": _involution("bitwise_not"),
    "abs": _idempotent("abs"),
    "floor": _idempotent("floor"),
    "ceil": _idempotent("ceil"),
    "trunc": _idempotent("trunc"),
    "round": _idempotent("round"),
    "minimum": _same,
    "maximum": _same,
    "bitwise_and": lambda args: _logic(args, True),
    "bitwise_or": lambda args: _logic(args, False),
    "where": _where,
    **{op: _compared(True) for op in ("eq", "le", "ge")},
    **{op: _compared(False) for op in ("ne", "lt", "gt")},
}
"""One rule an operation."""
