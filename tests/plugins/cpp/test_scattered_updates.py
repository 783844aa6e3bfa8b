"""Sums at positions that data give: point by point, and rows by themselves where no two of them meet."""

from __future__ import annotations

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType
from polyfuse.symbolic import axis

ISAS = ("", "avx2", "sse")


def summed(rows: int, length: int, size: int, step: int) -> Kernel:
    """``o[row * step + i[row, p]] += a[row, p]``, positions below `size`."""
    k = KernelBuilder({"x0": rows, "x1": length})
    k.arg("i", DType.i64), k.arg("a"), k.arg("o", kind="inout")
    s = k.section()
    at = s.load("i", k["x0"] * length + k["x1"])
    inside = s.op("lt", at, s.const(size, DType.i64))
    value = s.load("a", k["x0"] * length + k["x1"])
    s.store("o", axis("@0", size) + k["x0"] * step, value, at, mode="add", mask=inside)
    return k.build()


@pytest.mark.each_value
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [3, 40])
def test_rows_that_are_apart(rows: int, isa: str) -> None:
    kernel = summed(rows, 37, 11, 11)
    text = backend(isa).emit(kernel).text
    assert (", true);" in text.split("extern")[0]) == (rows == 40)
    at, a, o = torch.randint(0, 14, (rows, 37)), torch.randn(rows, 37), torch.randn(rows, 11)
    wanted = torch.cat((o, torch.zeros(rows, 3)), 1).scatter_add(1, at, a)[:, :11]
    compiled(kernel, isa)(at, a, o)
    torch.testing.assert_close(o, wanted)


def test_rows_that_overlap_share_memory_atomically() -> None:
    text = backend("").emit(summed(40, 37, 11, 5)).text
    assert ", alone);" in text
