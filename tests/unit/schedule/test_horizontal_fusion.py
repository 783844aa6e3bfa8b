"""Kernels that share no data become one where launches are costly."""

from __future__ import annotations

import itertools
import random

import torch

from polyfuse.schedule import Launch
from polyfuse.schedule.fusion.legality import disjoint
from polyfuse.symbolic import Index, axis, evaluate
from wide_device import Planned, wide

LARGE = 4000
"""Elements of a tensor that takes longer than starting a kernel."""


def operands(record: Planned) -> list[int]:
    """Buffers of each kernel."""
    steps = [s for s in record.schedules[0].steps if isinstance(s, Launch)]
    return [sum(arg.kind != "size" for arg in step.kernel.args) for step in steps]


def test_large_entries_of_lists_share_kernels_of_few_buffers() -> None:
    xs = [torch.randn(LARGE) for _ in range(12)]
    run_wide, record = wide(lambda *xs: [(x * 2).exp() for x in xs])
    for got, x in zip(run_wide(*xs), xs, strict=True):
        torch.testing.assert_close(got, (x * 2).exp())
    assert max(operands(record)) <= 16 and len(operands(record)) <= 3
    assert sum(operands(record)) == 24


def test_small_ones_share_any_number() -> None:
    xs = [torch.randn(20) for _ in range(12)]
    run_wide, record = wide(lambda *xs: [(x * 2).exp() for x in xs])
    for got, x in zip(run_wide(*xs), xs, strict=True):
        torch.testing.assert_close(got, (x * 2).exp())
    assert operands(record) == [24]


def test_different_operators_on_equal_loops() -> None:
    x, y, z = torch.randn(80, 50), torch.randn(80, 50), torch.randn(50, 70)
    run_wide, record = wide(lambda x, y, z: (x.exp(), y.abs() + 1, z.sin()))
    for got, wanted in zip(run_wide(x, y, z), (x.exp(), y.abs() + 1, z.sin()), strict=True):
        torch.testing.assert_close(got, wanted)
    assert sorted(operands(record)) == [2, 4]


def test_reductions_of_large_tensors_stay_apart() -> None:
    x, y = torch.randn(80, 50), torch.randn(80, 50)
    run_wide, record = wide(lambda x, y: (x.sum(1), y.sum(1)))
    for got, wanted in zip(run_wide(x, y), (x.sum(1), y.sum(1)), strict=True):
        torch.testing.assert_close(got, wanted)
    assert operands(record) == [2, 2]


def test_products_of_a_row_become_one_launch() -> None:
    """Though each is larger than what a launch costs; four times that they are not."""
    row, other = torch.randn(50), torch.randn(90, 50)
    for rows, launches in ((70, 1), (90, 2)):
        w, v = torch.randn(rows, 50), torch.randn(rows - 10, 50)

        def products(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
            return [(m * x).sum(1) for m in (w, v)]

        run_wide, record = wide(products)
        torch.testing.assert_close(run_wide(row, w, v), products(row, w, v))
        assert len(operands(record)) == launches
    # what multiplies no row stays apart
    run_wide, record = wide(lambda w, v: ((w * w).sum(1), (v * v).sum(1)))
    assert len(run_wide(w, other[:70])) == 2 and len(operands(record)) == 2


def test_parts_of_one_result_are_written_by_one_kernel() -> None:
    x, y = torch.randn(80, 50), torch.randn(80, 50)
    for dim in (0, 1):
        run_wide, record = wide(lambda x, y, dim=dim: torch.cat([x * 2, y.relu()], dim))
        torch.testing.assert_close(run_wide(x, y), torch.cat([x * 2, y.relu()], dim))
        assert operands(record) == [3]
    run_wide, record = wide(lambda x, y: torch.cat([x * 2, y[:, :30].relu()], 1))
    torch.testing.assert_close(run_wide(x, y), torch.cat([x * 2, y[:, :30].relu()], 1))
    assert operands(record) == [2, 2]


def elements(index: Index, sizes: tuple[int, ...]) -> set[int]:
    points = itertools.product(*(range(n) for n in sizes))
    return {evaluate(index, {f"a{k}": v for k, v in enumerate(point)}) for point in points}


def test_indices_that_disjoint() -> None:
    choose = random.Random(3)
    found = 0
    for _ in range(400):
        sizes = tuple(choose.randint(1, 5) for _ in range(choose.randint(1, 3)))
        index = sum((axis(f"a{k}", n) * choose.randint(1, 24) for k, n in enumerate(sizes)), start=0)
        if not isinstance(index, Index):
            continue
        other = index + choose.randint(-12, 12)
        if disjoint(index, other):
            found += 1
            assert not elements(index, sizes) & elements(other, sizes)
    assert found > 20
    i, j = axis("a0", 4), axis("a1", 8)
    assert disjoint(16 * i + j, 16 * i + j + 8) and disjoint(j + 8, j)
    assert not disjoint(16 * i + j, 16 * i + j + 7) and not disjoint(16 * i + j, 16 * i + 2 * j + 8)
    assert not disjoint(16 * i + j, 16 * i + j) and not disjoint(12 * i + j, 12 * i + j + 8)
