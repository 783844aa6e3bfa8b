"""Expressions simplify as they are built, and only where every value stays what it was."""

from __future__ import annotations

import math

import pytest
import torch

from polyfuse.ir.expr import Expr, const, load
from polyfuse.ir.types import DType
from polyfuse.rewrite import cast, make, round_half, scalar, simplify, where
from polyfuse.symbolic import axis

X = load("x", axis("i0", 8), DType.f32)
N = load("n", axis("i0", 8), DType.i64)
B = load("b", axis("i0", 8), DType.bool)
F32, I64 = DType.f32, DType.i64


def test_neutral_elements() -> None:
    assert make("mul", X, const(1, F32)) is X
    assert make("add", X, const(-0.0, F32)) is X
    assert make("sub", X, const(0.0, F32)) is X
    assert make("add", N, const(0, I64)) is N
    assert make("pow", X, const(1.0, F32)) is X
    assert make("neg", make("neg", X)) is X
    assert make("bitwise_and", B, const(True, DType.bool)) is B
    assert where(B, X, X) is X


def test_what_would_change_a_value_stays() -> None:
    assert make("mul", X, const(0.0, F32)).op == "mul"  # NaN, infinity, sign
    assert make("add", X, const(0.0, F32)).op == "add"  # -0.0 + 0.0 is 0.0
    assert make("sub", X, X).op == "sub"  # infinity - infinity
    assert make("div", X, const(3.0, F32)).op == "div"
    assert make("eq", X, X).op == "eq"  # NaN


def test_powers_and_exact_divisions() -> None:
    assert make("pow", X, const(2.0, F32)).op == "mul"
    assert make("pow", X, const(-1.0, F32)).op == "reciprocal"
    assert make("pow", X, const(0.5, F32)).op == "pow"  # of -infinity: a number, which the root of it is not
    assert make("div", X, const(8.0, F32)) is make("mul", X, const(0.125, F32))
    assert make("div", X, const(0.0, F32)) is make("mul", X, const(math.inf, F32))
    assert make("div", X, const(-0.0, F32)) is make("mul", X, const(-math.inf, F32))


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "minimum", "maximum"])
def test_folding_rounds_as_the_machine_does(op: str) -> None:
    reference = getattr(torch, op)
    values = [0.1, 1 / 3, 1e38, 3e38, -7.25, 1e-40, 16777217.0]
    for a in values:
        for b in values:
            folded = make(op, scalar(a, F32), scalar(b, F32))
            assert folded.op == "const"
            expected = reference(torch.tensor(a), torch.tensor(b)).item()
            assert folded.value == expected or math.isnan(expected)


def test_integers_wrap() -> None:
    assert make("add", const(2**63 - 1, I64), const(1, I64)) is const(-(2**63), I64)
    assert make("mul", const(200, DType.u8), const(2, DType.u8)) is const(144, DType.u8)


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16])
def test_rounding_to_half(dtype: DType) -> None:
    for value in (0.1, 1.00390625, 1.01171875, 65519.0, 65520.0, 1e39, 3.4e38, -2.7, math.inf, 1e-8, 0.0):
        assert round_half(value, dtype) == torch.tensor(value).to(dtype.torch).item()
    assert math.isnan(round_half(math.nan, dtype))


def test_casts() -> None:
    half = load("h", axis("i0", 8), DType.bf16)
    wide = cast(half, F32)
    assert cast(wide, DType.bf16) is half
    assert cast(cast(X, DType.bf16), F32).op == "cast"  # rounds
    assert cast(cast(X, DType.f64), F32) is X
    assert cast(cast(N, DType.i32), I64).op == "cast"  # wraps
    assert cast(cast(B, F32), I64) is cast(B, I64)
    assert cast(cast(X, DType.f64), DType.i32).args[0].op == "cast"


def test_simplify_reaches_a_fixed_point() -> None:
    raw = Expr("add", (Expr("mul", (X, const(1.0, F32)), F32), const(-0.0, F32)), F32)
    assert simplify(raw) is X
