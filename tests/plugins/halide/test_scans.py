"""Scans along contiguous rows: many rows at a time, and all that is left over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from halide_code import assembly, loops
from polyfuse.ir.expr import load
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse_halide.host import host

OPTIONS = {"backends": ["halide", "interpreter"]}
SHAPES = [
    (32, 64),
    (16, 16),
    (48, 64),
    (33, 70),
    (40, 1000),
    (5, 100),
    (3, 40, 48),
    (64, 15),
    (100, 17),
    (4, 16),
    (1, 33),
]


def running_sum(m: int, n: int) -> Kernel:
    i, r = axis("i0", m), axis("r0", n)
    args = (KernelArg("in0", "in", DType.f32, m * n), KernelArg("out0", "out", DType.f32, m * n))
    builder = Builder("running", (i,), (r,), args)
    index = i * n + r
    carried = Carry(("s",), "sum", (load("in0", index, DType.f32),), scan=True)
    builder.loop(carried, Store("out0", index, result("s", DType.f32)))
    return builder.kernel((m, n))


@pytest.mark.skipif(host().lanes < 16, reason="the instructions counted are those of 512-bit vectors")
def test_steps_are_scanned_in_registers(tmp_path: Path) -> None:
    """A vector of a row takes four exchanges of its elements, and the memory between them is none."""
    (loop,) = [part for part in loops(assembly(running_sum(8, 256), tmp_path)) if part.count("vperm") >= 4]
    assert len(re.findall(r"vadd\w+", loop)) == 5
    assert len(re.findall(r"vmov[ua]ps\s+%zmm\d+, ", loop)) <= 3


def test_running_sums_of_changing_sizes() -> None:
    compiled = torch.compile(lambda x: x.cumsum(-1), backend="polyfuse", options=OPTIONS, dynamic=True)
    for shape in ((5, 64), (3, 7), (9, 100), (2, 17)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), x.cumsum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.quick(5)
@pytest.mark.parametrize("shape", SHAPES)
def test_running_sums(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    compiled = torch.compile(lambda x: (x * 2).cumsum(-1), backend="polyfuse", options=OPTIONS, dynamic=False)
    torch.testing.assert_close(compiled(x), (x * 2).cumsum(-1), rtol=1e-5, atol=1e-4)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.bfloat16, torch.bool])
def test_running_sums_of_other_types(dtype: torch.dtype) -> None:
    for shape in ((64, 96), (50, 70)):
        x = (torch.randn(shape) * 3).to(dtype)
        found = torch.compile(lambda x: x.cumsum(-1), backend="polyfuse", options=OPTIONS, dynamic=False)(x)
        torch.testing.assert_close(found, x.cumsum(-1))


def test_other_kinds_and_edges() -> None:
    def every(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, positions = x.cummax(-1)
        return x.cumprod(-1), x.logcumsumexp(-1), values, positions

    x = torch.randn(32, 48)
    x[0, 5], x[1, 7], x[2, 3] = float("nan"), float("inf"), float("-inf")
    for actual, expected in zip(
        torch.compile(every, backend="polyfuse", options=OPTIONS)(x), every(x), strict=True
    ):
        torch.testing.assert_close(actual, expected, equal_nan=True)


def test_running_sum_in_place() -> None:
    x = torch.randn(64, 80)
    expected = x.cumsum(-1)
    torch.compile(lambda x: x.cumsum_(-1), backend="polyfuse", options=OPTIONS)(x)
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)
