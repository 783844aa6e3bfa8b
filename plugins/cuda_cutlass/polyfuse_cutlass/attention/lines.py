"""Scores to which a line along the keys is added, as ALiBi does: a steepness for each query, times the key,
and what the line has at key 0. The steepness takes one multiply-add of each score, all else of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyfuse.flex.problem import AXES, SCORE, Problem, statements
from polyfuse.ir.expr import Expr, apply, cast, const, index_value, loads, reindex, walk
from polyfuse.ir.types import DType
from polyfuse.symbolic import coefficient, free_axes
from polyfuse_cutlass.attention.scores import function_text, small_integers

_KEY = AXES[3]
_ZERO = const(0.0, DType.f32)
_NAMES = ("steepness", "start")
_INTEGERS = (DType.i32, DType.i64)


@dataclass(frozen=True)
class Line:
    """`steepness` times the key, plus `start`: expressions of f32 over batch, head and query."""

    steepness: Expr
    start: Expr


def line_of(problem: Problem) -> Line | None:
    """What is added to the scores, where that is a line along the keys and sums may be taken in any order;
    None otherwise.
    """
    if not problem.is_fast or not problem.scale > 0:
        return None
    added = _beside_score(problem.score)
    if added is None:
        return None
    found, names = statements([added])
    small = small_integers(found)
    terms = _terms(added, {expr for expr, name in names.items() if small.get(name)})
    return Line(terms[0], terms[1]) if terms is not None and terms[0] is not None else None


def line_text(problem: Problem, arrays: Mapping[str, str], sizes: Mapping[str, str]) -> str:
    """Functions that give a line's steepness and start."""
    line = line_of(problem)
    if line is None:
        return "\n".join(
            f"PF_INLINE f32 {name}(const Args&, f32, int, int, int, int) {{ return 0; }}" for name in _NAMES
        )
    return "\n".join(
        function_text(problem, name, root, arrays, sizes)
        for name, root in zip(_NAMES, (line.steepness, line.start), strict=True)
    )


def _beside_score(expr: Expr) -> Expr | None:
    """What is added to the score, if `expr` is a sum of it and of what does not read it; None otherwise."""
    if expr.op == "load" and expr.buffer == SCORE:
        return _ZERO
    if expr.op not in ("add", "sub"):
        return None
    left, right = expr.args
    if expr.op == "add" and not _reads_score(left):
        left, right = right, left
    sum_of_left = None if _reads_score(right) else _beside_score(left)
    if sum_of_left is None:
        return None
    if sum_of_left is _ZERO and expr.op == "add":
        return right
    return apply(expr.op, sum_of_left, right)


def _reads_score(expr: Expr) -> bool:
    return any(read.buffer == SCORE for read in loads(expr))


def _terms(expr: Expr, small: set[Expr]) -> tuple[Expr | None, Expr] | None:
    """The factor of the key (None where it is not read), and the value at key 0; None for what is no line.

    Args:
        small: integers that are exact as f32.
    """
    if not _reads_key(expr):
        return None, expr
    if expr.op == "index":
        factor = coefficient(expr.index, _KEY)
        if factor is None or _KEY in free_axes(factor):
            return None
        return index_value(factor), reindex(expr, {_KEY: 0})
    args = [_terms(arg, small) for arg in expr.args]
    if any(arg is None for arg in args) or expr.op not in ("cast", "add", "sub", "mul", "neg"):
        return None
    pairs = [arg for arg in args if arg is not None]
    if expr.op != "cast":
        return _combined(expr, pairs)
    ((steep, start),) = pairs
    (arg,) = expr.args
    if steep is None or arg not in small or expr.dtype not in (DType.f32, *_INTEGERS):
        return None
    return cast(steep, expr.dtype), cast(start, expr.dtype)


def _combined(expr: Expr, pairs: list[tuple[Expr | None, Expr]]) -> tuple[Expr | None, Expr] | None:
    """The terms of a sum, difference, product or negative, from those of its operands."""
    factors, starts = [p[0] for p in pairs], [p[1] for p in pairs]
    start = apply(expr.op, *starts)
    if expr.op == "mul":
        if None not in factors:
            return None
        ours = factors.index(None)
        other = factors[1 - ours]
        assert other is not None
        return apply("mul", other, starts[ours]), start
    if expr.op == "sub" and factors[0] is None:
        assert factors[1] is not None
        return apply("neg", factors[1]), start
    given = [f for f in factors if f is not None]
    return (apply(expr.op, *given) if len(given) == len(factors) else given[0]), start


def _reads_key(expr: Expr) -> bool:
    return any(e.op in ("index", "load") and _KEY in free_axes(e.index) for e in walk(expr))
