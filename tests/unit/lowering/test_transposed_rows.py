"""Which rows are stored transposed for a weight of signed bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyfuse.ir.expr import Expr, cast, const, load
from polyfuse.ir.expr import apply as applied
from polyfuse.ir.nodes import Buffer, Pointwise, Reduction
from polyfuse.ir.types import DType
from polyfuse.lowering.reductions.gemm_loops import GemmLoops
from polyfuse.lowering.reductions.gemm_transposed import TransposedRows, with_rows_transposed
from polyfuse.plugin.target_info import TargetInfo
from polyfuse.symbolic import axis

INFO = TargetInfo(transposed_rows=(17, 64))
I, J, K = axis("i0", 40), axis("i1", 512), axis("k0", 256)
X, W = load("x", I * 300 + K + 7, DType.bf16), cast(load("w", J * 256 + K, DType.i8), DType.bf16)


def turned(x: Expr = X, w: Expr = W, info: TargetInfo = INFO) -> TransposedRows | None:
    total = Buffer("sum", DType.f32, "cuda:0", (40, 512), (512, 1), "float32")
    gemm = Reduction("mm", (I, J), (K,), ("sum",), I * 512 + J, "dot", (x, w))
    finish = Pointwise("out", (I, J), (), "out", I * 512 + J, load("sum", I * 512 + J, DType.f32))
    rows = Buffer("x", DType.bf16, "cuda:0", (40, 256), (300, 1), "bfloat16")
    return with_rows_transposed(GemmLoops(gemm, finish, total), replace(info, launch_bytes=4096), {"x": rows})


def test_rows_are_stored_with_zeros_behind_them() -> None:
    found = turned()
    assert found is not None
    assert found.form.gemm.values == (load("sum_rows", K * 64 + I, DType.bf16), W)
    assert (found.buffer.size, found.buffer.stride) == ((256, 64), (64, 1))
    k, row = found.copy.axes
    assert found.copy.index == k * 64 + row
    read = found.copy.value
    assert read.access.index == row * 300 + k + 7 and read.mask is not None
    assert read.other == const(0, DType.bf16)


@pytest.mark.parametrize(
    "x, w, info",
    [
        (X, W, TargetInfo()),
        (X, W, replace(INFO, transposed_rows=(41, 64))),
        (load("x", I + K * 40, DType.bf16), W, INFO),
        (X, cast(load("w", J * 256 + K, DType.u8), DType.bf16), INFO),
        (X, cast(applied("neg", cast(load("w", J * 256 + K, DType.i8), DType.f32)), DType.bf16), INFO),
        (cast(load("x", I * 300 + K, DType.f32), DType.bf16), W, INFO),
    ],
    ids=["another device", "few rows", "transposed already", "bytes without signs", "computed", "two casts"],
)
def test_others_are_read_as_they_are(x: Expr, w: Expr, info: TargetInfo) -> None:
    assert turned(x, w, info) is None
