"""Constructors of scalar expressions that simplify as they build."""

from __future__ import annotations

from polyfuse.ir.expr import Expr, apply, const, rewrite
from polyfuse.ir.types import DType
from polyfuse.rewrite.algebra import RULES
from polyfuse.rewrite.casts import cast
from polyfuse.rewrite.fold import fold, round_f32

__all__ = ["cast", "make", "scalar", "simplify", "where"]

# The arithmetic of truth values, for operations whose rows have numbers only.
_ON_BOOL = {"add": "bitwise_or", "mul": "bitwise_and", "maximum": "bitwise_or", "minimum": "bitwise_and"}
# Operations that differ from others in what they do with NaN alone.
_WITHOUT_NAN = {"fmax": "maximum", "fmin": "minimum"}


def make(op: str, *args: Expr) -> Expr:
    """`op` of `args` in its simplest form. On bool, sums and products are the logical ones, as torch has
    them."""
    if op in _WITHOUT_NAN and not args[0].dtype.is_float:
        op = _WITHOUT_NAN[op]
    if args[0].dtype is DType.bool and op in _ON_BOOL:
        op = _ON_BOOL[op]
    if all(a.op == "const" for a in args):
        folded = fold(op, args)
        if folded is not None:
            return folded
    rule = RULES.get(op)
    if rule is not None:
        simpler = rule(args)
        if simpler is not None:
            return simpler
    return apply(op, *args)


def where(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """`yes` where `condition` holds, else `no`."""
    return make("where", condition, yes, no)


def scalar(value: bool | int | float, dtype: DType) -> Expr:
    """A Python number as torch wraps it: computed in double precision, then converted to `dtype`."""
    if dtype is DType.f32:
        return const(round_f32(float(value)), dtype)
    return const(value, dtype)


def simplify(root: Expr) -> Expr:
    """`root` rebuilt with every rule applied, from the leaves up."""

    def change(expr: Expr) -> Expr:
        if expr.op == "cast":
            return cast(expr.args[0], expr.dtype)
        if expr.op in ("const", "index", "size", "load", "bitcast", "rand"):
            return expr
        return make(expr.op, *expr.args)

    return rewrite(root, change)
