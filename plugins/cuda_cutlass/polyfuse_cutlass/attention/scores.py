"""score_mod and mask_mod of flexible attention as CUDA functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from polyfuse.base.errors import UnsupportedError
from polyfuse.flex.problem import AXES, GRADIENT, SCORE, Problem, statements
from polyfuse.ir.expr import Expr, loads
from polyfuse.ir.ops import SCALAR_OPS
from polyfuse.ir.statements import Cast, Compute, Constant, IndexValue, Load, Statement
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, bounds
from polyfuse_cutlass.codegen.ops import cast_text, literal, operation_text, unsupported_op
from polyfuse_cutlass.codegen.text import index_text

_QUICK: Mapping[str, str] = MappingProxyType(
    {"tanh": "quick_tanh", "sigmoid": "quick_sigmoid", "exp": "quick_exp", "exp2": "quick_exp2"}
)
"""Functions of `math.cuh` that are exact enough for weights of 16 bits."""
_SMALL = 1 << 22
"""Integers below which `small_float` is exact."""


def reads_memory(problem: Problem) -> bool:
    """Whether the functions read anything but the score and its indices."""
    return any(read.buffer not in (SCORE, GRADIENT) for read in loads(*problem.expressions))


def reads_score(problem: Problem) -> bool:
    """Whether the gradient follows from the score, which then has to be saved for it."""
    return problem.gradient is not None and any(read.buffer == SCORE for read in loads(problem.gradient))


def factors(problem: Problem, waits: bool) -> str:
    """Constants: the scale of the scores, which `waits` for the factor that makes changed scores those of
    base two or does not, and these factors.
    """
    binary = math.log2(math.e)
    factor = binary * (problem.scale if waits else 1)
    return f"constexpr f32 SCALE = {problem.scale!r}f, BINARY = {binary!r}f, FACTOR = {factor!r}f;"


def mask_text(problem: Problem, arrays: Mapping[str, str], sizes: Mapping[str, str]) -> str:
    """mask_mod: whether the score at some indices counts."""
    if problem.mask is None:
        return "PF_INLINE bool counts(const Args&, int, int, int, int) { return true; }"
    return function_text(problem, "counts", problem.mask, arrays, sizes)


def function_text(
    problem: Problem,
    name: str,
    root: Expr,
    arrays: Mapping[str, str],
    sizes: Mapping[str, str],
    gradient: bool = False,
) -> str:
    """A function of a score and its indices, or of its indices alone, that gives `root`.

    Args:
        arrays, sizes: what the fields of the kernel's arguments are called.
        gradient: whether it is a function of the changed score's gradient too.

    Raises `UnsupportedError` for what CUDA has no text for.
    """
    found, names = statements([root])
    types = {SCORE: DType.f32, GRADIENT: DType.f32}
    given = {
        SCORE: SCORE,
        GRADIENT: GRADIENT,
        **{target: f"v_{target}" for stmt in found for target in stmt.targets},
    }
    # indices are not negative, which the compiler cannot know
    lines = [f"  __builtin_assume({axis} >= 0);" for axis in AXES]
    small = small_integers(found)
    for stmt in found:
        (target,) = stmt.targets
        types[target] = stmt.dtype
        text = _text(stmt, given, types, arrays, sizes, problem.is_fast)
        if isinstance(stmt, Cast) and not stmt.bitwise and stmt.dtype is DType.f32 and small.get(stmt.arg):
            text = f"small_float({given[stmt.arg]})"
        lines.append(f"  const {stmt.dtype.value} {given[target]} = {text};")
    score = f"f32 {SCORE}, " if root.dtype is DType.f32 else ""
    score += f"f32 {GRADIENT}, " if gradient else ""
    return "\n".join(
        [
            f"PF_INLINE {root.dtype.value} {name}(const Args& args, {score}int b, int h, int m, int n) {{",
            *lines,
            f"  return {given[names[root]]};",
            "}",
        ]
    )


def small_integers(found: Iterable[Statement]) -> Mapping[str, tuple[int, int] | None]:
    """The bounds of integers that follow from a score's indices and are exact as f32; None for others."""
    ranges: dict[str, tuple[int, int] | None] = {}
    for stmt in found:
        (target,) = stmt.targets
        ranges[target] = _range(stmt, ranges)
    return ranges


def _range(stmt: Statement, known: Mapping[str, tuple[int, int] | None]) -> tuple[int, int] | None:
    """The bounds of a small integer that follows from a score's indices; None where they are unknown."""
    found: tuple[int | None, int | None] = (None, None)
    args = [known.get(name) for name in stmt.args]
    match stmt:
        case IndexValue():
            found = bounds(stmt.index)
        case Cast(bitwise=False) if args[0] and stmt.dtype in (DType.i32, DType.i64):
            found = args[0]
        case Compute(op="sub") if args[0] and args[1]:
            found = (args[0][0] - args[1][1], args[0][1] - args[1][0])
        case Compute(op="add") if args[0] and args[1]:
            found = (args[0][0] + args[1][0], args[0][1] + args[1][1])
    low, high = found
    if low is None or high is None or max(abs(low), abs(high)) >= _SMALL:
        return None
    return low, high


def _text(
    stmt: Statement,
    given: Mapping[str, str],
    types: Mapping[str, DType],
    arrays: Mapping[str, str],
    sizes: Mapping[str, str],
    quick: bool,
) -> str:
    values = [given[name] for name in stmt.args]

    def offset(index: IndexLike, indirect: tuple[str, ...] = ()) -> str:
        more = {f"@{i}": f"(i64){given[name]}" for i, name in enumerate(indirect)}
        return index_text(index, {**{axis: axis for axis in AXES}, **sizes, **more})

    match stmt:
        case Constant():
            return literal(stmt.value, stmt.dtype)
        case IndexValue():
            return offset(stmt.index)
        case Cast(bitwise=True):
            return f"same_bits<{stmt.dtype.value}>({values[0]})"
        case Cast():
            return cast_text(values[0], types[stmt.arg], stmt.dtype)
        case Load():
            # not as `volatile` as elsewhere: neighbours share what they read
            read = f"args.{arrays[stmt.buffer]}[{offset(stmt.index, stmt.indirect)}]"
            return read if stmt.mask is None else f"{values[-2]} ? {read} : {values[-1]}"
    if stmt.op not in SCALAR_OPS:
        raise UnsupportedError(f"{stmt.op} is not computed beside scores")
    dtype = types[stmt.args[-1]]
    reason = unsupported_op(stmt.op, dtype)
    if reason:
        raise UnsupportedError(reason)
    if quick and dtype is DType.f32:
        if stmt.op in _QUICK:
            return f"{_QUICK[stmt.op]}({values[0]})"
        if stmt.op == "div":
            return f"{values[0]} * quick_inverse({values[1]})"
    return operation_text(stmt.op, dtype, values)
