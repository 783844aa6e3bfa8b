"""Indices out of range: what kernels store, and the errors of packages that run without Python."""

from __future__ import annotations

import pytest
import torch

from cpp_kernels import backend, compiled
from native_runner import call
from polyfuse.aot import package
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from requirements import needs_gcc

ISAS = ("", "avx2", "sse", "scalar")
WRONG = 1 << 62


def checked_gather(wrapped: bool) -> Kernel:
    """``out0 = in1[in0]``, where `inout0` gets an index that is wrong. Its extent is an argument."""
    wrap = """
        v4 = lt bool (v1, v0)
        v5 = add i64 (v1, v2)
        v6 = where i64 (v4, v5, v1)"""
    index = "v6" if wrapped else "v1"
    found = parse(f"""kernel k on cpu {{
      symbols s0{{2..1000000}}, s1{{0..4096}}
      numerics fast
      axes p0{{s0}} ~ 1000
      in in0: i64[s0]
      in in1: f32[4096]
      inout inout0: i64[1]
      out out0: f32[s0]
      size s0: i64 ~ 1000
      size s1: i64 ~ 64
      once {{
        v0 = const i64 0
        v1 = load i64 in0[p0]
        v2 = index i64 <s1>
        v3 = const i64 {WRONG}{wrap if wrapped else ""}
        v7 = bitwise_or i64 (v1, v3)
        v8 = maximum i64 ({index}, v0)
        v9 = index i64 <s1 - 1>
        v10 = minimum i64 (v8, v9)
        v11 = ne bool (v10, {index})
        store i64 check inout0[0] = v7 if v11
        v12 = index i64 <4095>
        v13 = maximum i64 (v10, v0)
        v14 = load f32 in1[@0{{4096}}] @(v13)
        store f32 set out0[p0] = v14
      }}
    }}""")
    assert isinstance(found, Kernel)
    return found


@pytest.mark.quick(1)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_kernel_says_which_index_is_wrong(isa: str, wrapped: bool) -> None:
    kernel = checked_gather(wrapped)
    assert "limit_checked(" in backend(isa).emit(kernel).text
    launch = compiled(kernel, isa)
    size, count = 64, 1003
    table, out = torch.randn(4096), torch.empty(count)
    lowest = -size if wrapped else 0
    good = torch.randint(lowest, size, (count,), generator=torch.Generator().manual_seed(0))
    status = torch.zeros(1, dtype=torch.int64)
    launch(good, table, status, out, count, size)
    assert status.item() == 0
    torch.testing.assert_close(out, table[good % size], rtol=0, atol=0)
    for position in (0, 5, 13, 500, 1000, 1002):
        for wrong in (lowest - 1, size, 1 << 40, -(1 << 62) - 7):
            bad = good.clone()
            bad[position] = wrong
            status.zero_()
            launch(bad, table, status, out, count, size)
            assert status.item() == wrong | WRONG
            right = torch.arange(count) != position
            torch.testing.assert_close(out[right], table[good[right] % size], rtol=0, atol=0)


@pytest.mark.parametrize("isa", ISAS)
def test_every_index_into_nothing_is_wrong(isa: str) -> None:
    status = torch.zeros(1, dtype=torch.int64)
    index = torch.zeros(100, dtype=torch.int64)
    launch = compiled(checked_gather(False), isa)
    launch(index, torch.zeros(4096), status, torch.empty(100), 100, 0)
    assert status.item() == WRONG


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 6)

    def forward(self, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.table(index)[rows] * 2


@needs_gcc
def test_a_native_package_says_what_is_out_of_range(tmp_path):
    model = Table().eval()
    good = torch.tensor([9, 0, 1]), torch.tensor([-3, 2])
    path = package(torch.export.export(model, good), path=tmp_path / "table.pf", native=True)
    calls = [good, (torch.tensor([9, 0, 10]), good[1]), (good[0], torch.tensor([-4, 2])), good]
    first, table, rows, last = call(path, calls)
    assert table.error.endswith("IndexError: index out of range in self")
    assert rows.error.endswith("IndexError: index -4 is out of bounds for dimension 0 with size 3")
    for found in (first, last):
        torch.testing.assert_close(found.results[0], model(*good))
