"""Functions that multiply and add in one step, in kernels whose other arithmetic stays strict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from halide_code import assembly
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Expr, apply, load
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis
from polyfuse.testing.cases.builder import Builder, Store
from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.codegen.kernel import contracts

F32 = DType.f32
OPTIONS = {"backends": ["halide", "interpreter"]}


def points(value: Callable[[Expr], Expr], numel: int = 256) -> Kernel:
    i = axis("i0", numel)
    args = (KernelArg("in0", "in", F32, numel), KernelArg("out0", "out", F32, numel))
    builder = Builder("contracting", (i,), (), args)
    builder.once(Store("out0", i, value(load("in0", i, F32))))
    return builder.kernel((numel,))


@pytest.mark.quick(4)
@pytest.mark.parametrize("op", ["exp", "log", "erf", "tanh", "sigmoid", "atan", "log1p", "expm1"])
def test_functions_multiply_and_add_in_one_step(op: str, tmp_path: Path) -> None:
    kernel = points(lambda x: apply(op, x))
    assert json.loads(HalideBackend(Settings.resolve()).emit(kernel).meta)["contracts"]
    text = assembly(kernel, tmp_path)
    fused, added = text.count("vfm") + text.count("vfnm"), text.count("vaddps")
    assert fused >= 4 and fused > added - 6


def test_what_walks_its_operands_often_does_not_contract() -> None:
    assert contracts(points(lambda x: apply("exp", apply("exp", apply("maximum", x, x)))))
    assert not contracts(points(lambda x: apply("exp", apply("remainder", x, x))))
    assert not contracts(points(lambda x: apply("mul", x, x)))

    def many(x: Expr) -> Expr:
        for _ in range(16):
            x = apply("maximum", x, apply("mul", x, x))
        return apply("exp", x)

    assert not contracts(points(many))


def edges() -> torch.Tensor:
    special = [
        math.nan,
        math.inf,
        -math.inf,
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1e-38,
        3e38,
        -3e38,
        88.7,
        -103.9,
        -87.4,
    ]
    return torch.cat((torch.tensor(special), torch.randn(300) * 30))


def test_other_arithmetic_stays_strict() -> None:
    """Sums of products, comparisons and differences give what eager mode gives, bit for bit."""

    def every(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        e = torch.exp(x)
        return (
            e,
            x * y + y,
            x - (x + y) + y,
            (x < y) | (x != x),
            torch.where(x == x, x, y),
            x * 0.0 + y,
            -x + x,
        )

    x = edges()
    y = x[torch.randperm(x.numel())]
    found = torch.compile(every, backend="polyfuse", options=OPTIONS)(x, y)
    for actual, expected in zip(found[1:], every(x, y)[1:], strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
        if expected.is_floating_point():
            zero = expected == 0
            assert torch.equal(actual[zero].signbit(), expected[zero].signbit())


def test_numbers_that_are_none_go_through_functions() -> None:
    """What is asked of a result is not answered by what LLVM believes of contracted sums."""

    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = []
        for function in (torch.exp, torch.log, torch.erf, torch.tanh, torch.sigmoid, torch.expm1, torch.atan):
            y = function(x)
            found += [y.isnan(), y != y, torch.maximum(y, -y), torch.relu(y), y.nan_to_num(7.0)]
            found += [torch.exp(torch.minimum(y, x)), y.bfloat16()]
        return tuple(found)

    x = edges()
    compiled = torch.compile(every, backend="polyfuse", options=OPTIONS)
    for actual, expected in zip(compiled(x), every(x), strict=True):
        assert torch.equal(actual.isnan(), expected.isnan())
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_sums_in_lanes_and_rows_contract() -> None:
    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.nn.functional.gelu(x)
        return torch.softmax(y, -1), y.sum(0), y.amax(-1), torch.log_softmax(y, 0), y.cumsum(-1)

    x = torch.randn(33, 70)
    found = torch.compile(every, backend="polyfuse", options=OPTIONS)(x)
    for actual, expected in zip(found, every(x), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_indices_that_are_computed_contract() -> None:
    """Where values go by floating-point numbers, and what is added there."""

    def spread(x: torch.Tensor) -> torch.Tensor:
        index = (torch.sigmoid(x) * 9.99).long()
        return torch.zeros(10).index_put((index,), torch.exp(x), accumulate=True)

    x = torch.randn(500)
    found = torch.compile(spread, backend="polyfuse", options=OPTIONS)(x)
    torch.testing.assert_close(found, spread(x), rtol=1e-5, atol=1e-5)
