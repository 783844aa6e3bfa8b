"""Inputs that lanes read in the opposite order: a tail of such lanes cannot be compiled where the input is
known to begin at zero."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from models import checks
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import load
from polyfuse.ir.kernel import Kernel, KernelArg
from polyfuse.ir.types import DType
from polyfuse.symbolic import IndexLike, axis
from polyfuse.testing.cases.builder import Builder, Store
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend

LANE = axis("i0", 8)


def copied(index: IndexLike) -> Kernel:
    args = (KernelArg("in0", "in", DType.f32, 64), KernelArg("out0", "out", DType.f32, 8))
    builder = Builder("copied", (LANE,), (), args)
    builder.once(Store("out0", LANE, load("in0", index, DType.f32)))
    return builder.kernel((8,))


@pytest.mark.parametrize(
    ("index", "backwards"),
    [(LANE, False), (7 - LANE, True), (7 - LANE // 2, True), (LANE // 2 + 3, False)],
)
def test_who_reads_backwards(index: IndexLike, backwards: bool) -> None:
    text = HalideBackend(Settings.resolve()).emit(copied(index)).text
    assert ("backwards=True" in text) is backwards


@pytest.mark.slow
def test_reflected_planes_are_compiled() -> None:
    def reflected(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x[None], (1, 1, 2, 2), "reflect")

    options = {"backends": ["halide"], "strict": True}
    x = torch.randn(3, 4, 6)
    assert torch.equal(checks.compile_function(reflected, options=options)(x), reflected(x))
