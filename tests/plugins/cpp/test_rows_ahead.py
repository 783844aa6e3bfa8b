"""Loops over the rows of strips of columns ask ahead for rows where a matrix is larger than the caches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType

pytestmark = pytest.mark.each_value
ISAS = ("", "avx2", "sse")


def column_sums(rows: int, columns: int, dtype: DType) -> Kernel:
    """The sum of each column, and that of its squares."""
    k = KernelBuilder({"x0": columns}, {"r0": rows})
    k.arg("a", dtype), k.out("o"), k.out("p")
    s = k.section(looped=True)
    value = s.cast(s.load("a", k["r0"] * columns + k["x0"]), DType.f32)
    sums = [s.reduce("sum", value), s.reduce("sum", s.op("mul", value, value))]
    after = k.section()
    for name, total in zip("op", sums, strict=True):
        after.store(name, k["x0"], total)
    made = k.build()
    return replace(made, args=(replace(made.args[0], numel=rows * columns), *made.args[1:]))


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16])
@pytest.mark.parametrize(("rows", "columns"), [(4100, 520), (17000, 263)])
def test_large_matrices(rows: int, columns: int, dtype: DType, isa: str) -> None:
    kernel = column_sums(rows, columns, dtype)
    assert "__builtin_prefetch(" in backend(isa).emit(kernel).text
    a, o, p = torch.randn(rows, columns).to(dtype.torch), torch.empty(columns), torch.empty(columns)
    compiled(kernel, isa)(a, o, p)
    torch.testing.assert_close(o, a.double().sum(0).float(), rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(p, a.double().square().sum(0).float(), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16])
@pytest.mark.parametrize(("parts", "rows", "columns"), [(72, 64, 520), (300, 32, 263)])
def test_parts_of_columns_ask_for_the_next_part(
    parts: int, rows: int, columns: int, dtype: DType, isa: str
) -> None:
    k = KernelBuilder({"x0": parts, "x1": columns}, {"r0": rows})
    k.arg("a", dtype), k.out("o")
    s = k.section(looped=True)
    value = s.load("a", k["x0"] * (rows * columns) + k["r0"] * columns + k["x1"])
    total = s.reduce("sum", s.cast(value, DType.f32))
    k.section().store("o", k["x0"] * columns + k["x1"], total)
    made = k.build()
    kernel = replace(made, args=(replace(made.args[0], numel=parts * rows * columns), *made.args[1:]))
    text = backend(isa).emit(kernel).text
    assert f"+ {rows * columns})" in next(line for line in text.splitlines() if "__builtin_prefetch(" in line)
    a, o = torch.randn(parts, rows, columns).to(dtype.torch), torch.empty(parts, columns)
    compiled(kernel, isa)(a, o)
    torch.testing.assert_close(o, a.double().sum(1).float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("rows", "columns"), [(1000, 520), (60000, 24)])
def test_small_ones_and_those_of_short_rows_are_followed_anyway(rows: int, columns: int) -> None:
    assert "__builtin_prefetch(" not in backend().emit(column_sums(rows, columns, DType.f32)).text
