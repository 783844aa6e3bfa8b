"""Conditions on indices: decided at compile time where the bounds of the index allow it."""

from __future__ import annotations

from collections.abc import Sequence

from polyfuse.ir.expr import Expr, const, guard, index_value
from polyfuse.ir.types import DType
from polyfuse.rewrite import make, where
from polyfuse.symbolic import IndexLike, is_less, is_nonnegative

TRUE = const(True, DType.bool)
FALSE = const(False, DType.bool)


def less(a: IndexLike, b: IndexLike) -> Expr:
    """``a < b``."""
    if is_less(a, b):
        return TRUE
    if is_nonnegative(a - b):
        return FALSE
    return make("lt", index_value(a), index_value(b))


def at_least(a: IndexLike, b: IndexLike) -> Expr:
    """``a >= b``."""
    if is_nonnegative(a - b):
        return TRUE
    if is_less(a, b):
        return FALSE
    return make("ge", index_value(a), index_value(b))


def between(index: IndexLike, low: IndexLike, high: IndexLike) -> Expr:
    """``low <= index < high``."""
    return make("bitwise_and", at_least(index, low), less(index, high))


def all_of(*tests: Expr) -> Expr:
    """Every one of `tests`."""
    result = TRUE
    for test in tests:
        result = make("bitwise_and", result, test)
    return result


def exists(indices: Sequence[IndexLike], size: Sequence[IndexLike]) -> Expr:
    """Whether there is an element at `indices` of a tensor."""
    return all_of(*[between(index, 0, n) for index, n in zip(indices, size, strict=True)])


def masked(body: Expr, mask: Expr, other: Expr) -> Expr:
    """`body` where `mask` holds, touching no memory elsewhere; `other` where it does not."""
    if mask is TRUE:
        return body
    if mask is FALSE:
        return other
    guarded = guard(body, mask)
    return guarded if _gives(guarded, other) else where(mask, guarded, other)


def _gives(guarded: Expr, other: Expr) -> bool:
    """Whether a guarded body is by itself `other` where its mask fails: loads that are not made give 0."""
    stem = guarded.args[0] if guarded.op == "cast" else guarded
    return stem.op == "load" and stem.other is not None and _is_zero(stem.other) and _is_zero(other)


def _is_zero(value: Expr) -> bool:
    return value.op == "const" and str(value.value) in ("0", "0.0", "False")
