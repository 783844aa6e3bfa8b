"""Teams of threads: who takes part in a parallel region, and in which order stages run in one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from polyfuse.ir.kernel import Kernel

TASKS = "/proc/self/task"


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def sums(rows: int, columns: int, along_rows: bool) -> Kernel:
    """Sums of the rows, or of the columns, of a matrix."""
    points, steps = (rows, columns) if along_rows else (columns, rows)
    k = KernelBuilder({"x0": points}, {"r0": steps})
    k.arg("a"), k.out("o")
    i = k["x0"] * columns + k["r0"] if along_rows else k["r0"] * columns + k["x0"]
    s = k.section(True)
    total = s.reduce("sum", s.load("a", i))
    k.section().store("o", k["x0"], total)
    return k.build()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux which threads there are")
def test_a_small_team_ends_no_threads_of_the_pool(three_threads: None) -> None:
    a, o = torch.randn(90, 1024), torch.zeros(90)
    run = compiled(sums(90, 1024, along_rows=True))
    large = torch.randn(1 << 18)
    large.sum()
    run(a, o)
    before = set(os.listdir(TASKS))
    for _ in range(5):
        run(a, o)
        large.sum()
    assert set(os.listdir(TASKS)) == before
    torch.testing.assert_close(o, a.sum(1))


@pytest.mark.quick(1)
@pytest.mark.parametrize("columns", [40, 1000])
def test_stages_of_a_sum_share_one_region(columns: int, three_threads: None) -> None:
    """The second stage has a team of its own where there are many columns, else one thread."""
    kernel = sums(2000, columns, along_rows=False)
    text = backend("").emit(kernel).text
    assert text.count("in_team(") == 1 and "in_team(team, stage0, stage1);" in text
    a, o = torch.randn(2000, columns), torch.zeros(columns)
    run = compiled(kernel)
    for _ in range(3):
        run(a, o.fill_(float("nan")))
        torch.testing.assert_close(o, a.double().sum(0).float(), rtol=1e-5, atol=1e-4)
