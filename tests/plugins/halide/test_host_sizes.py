"""Sizes that only the host computes are known to a kernel's launcher."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse.base.settings import Settings
from polyfuse.ir.expr import const
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis, host, symbol
from polyfuse.testing.cases.builder import Builder, Store
from polyfuse_halide.backend import HalideBackend


def test_a_tensor_as_long_as_the_host_says(tmp_path: Path) -> None:
    length = symbol("s0", 2)
    rounded = host("math.ceil((s0 / 4))", (length,), 1)
    i = axis("i0", length)
    args = (
        KernelArg("out0", "out", DType.f32, length + rounded),
        KernelArg("s0", "size", DType.i64, hint=9),
    )
    builder = Builder("part", (i,), (), args)
    builder.once(Store("out0", i, const(2.0, DType.f32)))
    backend = HalideBackend(Settings.resolve())
    source = backend.emit(builder.kernel((9,)))
    backend.build([source], tmp_path)
    kernel = backend.load(tmp_path)[source.key]
    for size in (9, 20, 3):
        found = torch.full((size + -(-size // 4),), 5.0)
        kernel(found, size)
        assert found[:size].eq(2).all() and found[size:].eq(5).all()
