"""Simplification after one node's value replaces a load of it."""

from __future__ import annotations

from collections.abc import Callable

from polyfuse.ir.expr import Expr, rewrite
from polyfuse.ir.types import DType
from polyfuse.rewrite.casts import cast

__all__ = ["simplifier"]

# Types whose rounding is no more than that; who converts to eight bits wants the values that these have.
_ROUNDED = (DType.bf16, DType.f16)


def simplifier(numerics: str) -> Callable[[Expr], Expr]:
    """The rule for forwarded values: ``numerics="fast"`` skips rounding a value to a memory type and widening
    it again, which ``"eager"`` keeps because eager mode stores it in between.
    """

    def change(expr: Expr) -> Expr:
        if expr.op != "cast":
            return expr
        value = expr.args[0]
        if (
            numerics == "fast"
            and value.op == "cast"
            and value.dtype in _ROUNDED
            and value.args[0].dtype is expr.dtype
        ):
            return value.args[0]
        return cast(value, expr.dtype)

    return lambda root: rewrite(root, change)
