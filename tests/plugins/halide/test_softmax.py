"""Softmaxes: what is summed alone, and quotients by one sum."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Expr, apply, const, load
from polyfuse.ir.kernel import Kernel, KernelArg, RowBuffer
from polyfuse.ir.types import DType
from polyfuse.kit import KernelFacts
from polyfuse.symbolic import axis
from polyfuse.testing.cases.builder import Builder, Carry, Store, result
from polyfuse_halide.backend import HalideBackend
from polyfuse_halide.codegen.values import softmaxes_of

F32 = DType.f32


def softmax(
    m: int, n: int, scratch: bool = True, first: float = 2.0, second: float = 2.0, largest: str = "max"
) -> Kernel:
    """The softmax of multiples of rows, or with no scratch to keep its shares, their sum; `first` is the
    factor of the values of which one is the largest, `second` that of what is summed.
    """
    i, r = axis("i0", m), axis("r0", n)
    numel = m * n if scratch else m
    args = (KernelArg("in0", "in", F32, m * n), KernelArg("out0", "out", F32, numel))
    builder = Builder("shares", (i,), (r,), args, (RowBuffer("row", F32, n),) if scratch else ())

    def value(factor: float) -> Expr:
        return apply("mul", load("in0", i * n + r, F32), const(factor, F32))

    builder.loop(Carry(("m",), largest, (value(first),)))
    share = apply("exp", apply("sub", value(second), result("m", F32)))
    carried = Carry(("s",), "sum", (share,))
    if scratch:
        builder.loop(Store("row", r, share), carried)
        builder.loop(Store("out0", i * n + r, apply("div", load("row", r, F32), result("s", F32))))
    else:
        builder.loop(carried)
        builder.once(Store("out0", i, result("s", F32)))
    return builder.kernel((m, n))


def run(kernel: Kernel, x: torch.Tensor, found: torch.Tensor, folder: Path) -> torch.Tensor:
    backend = HalideBackend(Settings.resolve())
    source = backend.emit(kernel)
    backend.build([source], folder)
    backend.load(folder)[source.key](x, found)
    return found


def text(kernel: Kernel) -> str:
    return HalideBackend(Settings.resolve()).emit(kernel).text


@pytest.mark.parametrize("shape", [(5, 64), (40, 1000), (2, 3)])
def test_quotients_by_one_sum(shape: tuple[int, int], tmp_path: Path) -> None:
    kernel = softmax(*shape)
    assert (
        "reciprocal(" in text(kernel)
        and "divide(" not in text(kernel)
        and "exp_in_softmax(" not in text(kernel)
    )
    x = torch.randn(shape) * 5
    torch.testing.assert_close(run(kernel, x, torch.zeros(shape), tmp_path), torch.softmax(x * 2, -1))


@pytest.mark.parametrize("shape", [(5, 64), (40, 1000), (2, 3)])
def test_sums_of_shares_are_accurate(shape: tuple[int, int], tmp_path: Path) -> None:
    kernel = softmax(*shape, scratch=False)
    assert "exp_in_softmax(" in text(kernel)
    x = torch.randn(shape) * torch.tensor([1e-3, 1.0, 30.0]).repeat(shape[0])[: shape[0], None]
    wanted = (x.double() * 2 - (x.double() * 2).amax(-1, keepdim=True)).exp().sum(-1)
    found = run(kernel, x, torch.zeros(shape[0]), tmp_path)
    torch.testing.assert_close(found.double(), wanted, rtol=5e-7, atol=0)


@pytest.mark.parametrize("scratch", [False, True])
def test_edges_of_rows(scratch: bool, tmp_path: Path) -> None:
    x = torch.randn(6, 96)
    x[0, 3], x[1, 95], x[2, 7], x[3, 0] = math.nan, math.inf, -math.inf, 3e38
    x[4] = -math.inf
    x[5] = -3e38
    y = x * 2
    shares = (y - y.amax(-1, keepdim=True)).exp()
    wanted = shares / shares.sum(-1, keepdim=True) if scratch else shares.sum(-1)
    found = run(softmax(6, 96, scratch), x, torch.zeros_like(wanted), tmp_path)
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_other_values_have_no_shares(tmp_path: Path) -> None:
    for other in (
        softmax(4, 64, second=2.5),
        softmax(4, 64, first=0.0, second=-0.0),
        softmax(4, 64, largest="min"),
    ):
        found = softmaxes_of(KernelFacts.of(other))
        assert not found.exponentials | found.quotients
    x = torch.randn(4, 64)
    shares = (x * 2.5 - (x * 2).amax(-1, keepdim=True)).exp()
    found = run(softmax(4, 64, second=2.5), x, torch.zeros(4, 64), tmp_path)
    torch.testing.assert_close(found, shares / shares.sum(-1, keepdim=True))


def test_roundings_are_eager_modes_where_asked() -> None:
    for kernel in (softmax(4, 64), softmax(4, 64, scratch=False)):
        exact = text(replace(kernel, numerics="eager"))
        assert "exp(" in exact and "reciprocal(" not in exact and "exp_in_softmax(" not in exact
