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


@pytest.mark.quick(2)
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


def grouped(rows: int, length: int, counts: tuple[int, ...], step: int, looped: bool) -> Kernel:
    """``o_k[row // counts[k] * step + p] += a[row, p]``, and the sum of each row where `looped`."""
    k = KernelBuilder({"x0": rows}, {"r0": length}) if looped else KernelBuilder({"x0": rows, "r0": length})
    k.arg("a")
    for number in range(len(counts)):
        k.arg(f"o{number}", kind="inout")
    s = k.section(looped)
    value = s.load("a", k["x0"] * length + k["r0"])
    for number, count in enumerate(counts):
        s.store(f"o{number}", k["x0"] // count * step + k["r0"], value, mode="add")
    if looped:
        total = s.reduce("sum", value)
        k.section().store(k.out("total"), k["x0"], total)
    return k.build()


def is_divided_by_groups(kernel: Kernel) -> bool:
    text = backend("").emit(kernel).text
    assert (", true);" in text.split("extern")[0]) == ("shares" in text)
    return "shares" in text


@pytest.mark.each_value
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("looped", [False, True])
def test_rows_that_add_to_one_row_are_one_threads(looped: bool, isa: str) -> None:
    rows, length = 1000, 83
    kernel = grouped(rows, length, (32,), length, looped)
    a, o, total = torch.randn(rows, length), torch.randn(32, length), torch.empty(rows)
    index = (torch.arange(rows) // 32)[:, None].expand(-1, length)
    wanted = o.scatter_add(0, index, a)
    run, before = compiled(kernel, isa), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run(a, o, *([total] if looped else []))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(o, wanted)
    assert not looped or torch.allclose(total, a.sum(1), atol=1e-4)


@pytest.mark.parametrize("looped", [False, True])
def test_rows_are_divided_by_groups_where_groups_are_apart(looped: bool) -> None:
    assert is_divided_by_groups(grouped(1000, 83, (32,), 83, looped))
    assert is_divided_by_groups(grouped(1000, 83, (32, 32), 90, looped))
    assert not is_divided_by_groups(grouped(1000, 83, (32,), 82, looped))
    assert not is_divided_by_groups(grouped(1000, 83, (32, 16), 83, looped))
