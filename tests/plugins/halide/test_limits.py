"""The larger or smaller of a number and a constant: one instruction, with the answers of any other pair."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from halide_code import assembly
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import apply, const, load
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis
from polyfuse.testing.cases.builder import Builder, Store
from polyfuse_halide.backend import HalideBackend

LIMITS = (0.0, -0.0, 1.5, -2.0, math.inf, -math.inf, math.nan)


def limited(op: str, limit: float, first: bool, dtype: DType, numel: int) -> Kernel:
    i = axis("i0", numel)
    args = (KernelArg("in0", "in", dtype, numel), KernelArg("out0", "out", dtype, numel))
    builder = Builder("limited", (i,), (), args)
    pair = (load("in0", i, dtype), const(limit, dtype))
    builder.once(Store("out0", i, apply(op, *(pair[::-1] if first else pair))))
    return builder.kernel((numel,))


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
@pytest.mark.parametrize("op", ["maximum", "minimum"])
def test_constant_limits(op: str, dtype: DType, tmp_path: Path) -> None:
    x = torch.cat(
        (torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, -1e-45]), torch.randn(50) * 3)
    )
    x = x.to(torch.float32 if dtype is DType.f32 else torch.float64)
    backend = HalideBackend(Settings.resolve())
    cases = [(limit, first) for limit in LIMITS for first in (False, True)]
    sources = [backend.emit(limited(op, limit, first, dtype, x.numel())) for limit, first in cases]
    backend.build(sources, tmp_path)
    kernels = backend.load(tmp_path)
    for (limit, first), source in zip(cases, sources, strict=True):
        found, other = torch.empty_like(x), torch.full_like(x, limit)
        kernels[source.key](x, found)
        a, b = (other, x) if first else (x, other)
        better = a > b if op == "maximum" else a < b
        expected = torch.where(better | a.isnan(), a, b)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        number = ~expected.isnan()
        assert torch.equal(found[number].signbit(), expected[number].signbit()), (limit, first)


@pytest.mark.parametrize(("op", "name"), [("maximum", "vmaxps"), ("minimum", "vminps")])
def test_a_constant_limit_is_one_instruction(op: str, name: str, tmp_path: Path) -> None:
    text = assembly(limited(op, 1.5, False, DType.f32, 256), tmp_path)
    assert name in text and "vcmp" not in text
