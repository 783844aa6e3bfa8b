"""Lines along the keys, found in scores' functions: steepness and start give what was added."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutlass_attention import problem_of
from polyfuse.flex.problem import SCORE, score_axes
from polyfuse.ir.expr import Expr, apply, cast, const, index_value, load
from polyfuse.ir.types import DType
from polyfuse.symbolic import evaluate, symbol
from polyfuse_cutlass.attention.lines import line_of

_OPS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "exp": lambda x: 2**x,
    "bitwise_and": lambda x, y: x & y,
}
S = load(SCORE, 0, DType.f32)
B, H, M, N = score_axes((2, 16, 4096, 4096))
SLOPE = load("slopes", H, DType.f32)


def number(index) -> Expr:
    return cast(index_value(index), DType.f32)


def some(value: float) -> Expr:
    return const(value, DType.f32)


def integer(index) -> Expr:
    return cast(index_value(index), DType.i32)


AWAY = cast(apply("sub", integer(N), integer(M)), DType.f32)
LINES = {
    "alibi": apply("add", S, apply("mul", SLOPE, AWAY)),
    "the score last": apply("add", apply("mul", number(2 * N + M), SLOPE), S),
    "taken away": apply("sub", S, apply("mul", apply("neg", AWAY), SLOPE)),
    "from a number": apply("add", S, apply("sub", some(3.0), apply("mul", number(N), some(0.5)))),
    "several": apply("add", apply("sub", apply("add", S, number(N)), load("rows", M, DType.f32)), AWAY),
    "steeper with queries": apply("add", S, apply("mul", number(N), apply("exp", SLOPE))),
}
OTHERS = {
    "plain": S,
    "of rows alone": apply("add", S, load("rows", M, DType.f32)),
    "a table": apply("add", S, load("table", 4096 * M + N, DType.f32)),
    "a square": apply("add", S, apply("mul", AWAY, number(N))),
    "a curve": apply("add", S, apply("exp", number(N))),
    "twice the score": apply("add", S, apply("mul", S, AWAY)),
    "a factor": apply("mul", apply("add", S, AWAY), some(0.5)),
    "bits": apply("add", S, cast(apply("bitwise_and", integer(N), integer(M)), DType.f32)),
    "rounded": apply("add", S, cast(cast(AWAY, DType.bf16), DType.f32)),
}


def problem(score: Expr, **more):
    return replace(problem_of(**more), score=score)


def value(expr: Expr, at: dict[str, int]) -> float:
    match expr.op:
        case "index":
            return evaluate(expr.index, at)
        case "const":
            return expr.value
        case "load":
            return 0.0 if expr.buffer == SCORE else 0.125 * (1 + evaluate(expr.index, at) % 5)
        case "cast":
            return value(expr.args[0], at)
    return _OPS[expr.op](*(value(arg, at) for arg in expr.args))


@pytest.mark.parametrize("name", LINES)
def test_lines(name):
    line = line_of(problem(LINES[name]))
    assert line is not None
    for at in ({"b": 1, "h": 3, "m": 17, "n": 0}, {"b": 0, "h": 2, "m": 5, "n": 4001}):
        without = {**at, "n": 0}
        found = value(line.steepness, without) * at["n"] + value(line.start, without)
        assert found == value(LINES[name], at)


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    assert line_of(problem(OTHERS[name])) is None


def test_sums_in_the_order_of_the_model():
    assert line_of(problem(LINES["alibi"], is_fast=False)) is None
    assert line_of(problem(LINES["alibi"], scale=-1.0)) is None


def test_integers_of_any_size_are_not_numbers_of_32_bits():
    *_, m, n = score_axes((2, 16, symbol("length"), symbol("length")))
    assert line_of(problem(apply("add", S, number(n - m)))) is None
