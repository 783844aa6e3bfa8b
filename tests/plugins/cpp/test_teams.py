"""Teams of threads: who takes part in a parallel region, and in which order stages run in one."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import pytest
import torch

from cpp_kernels import KernelBuilder, backend, compiled
from cpp_layer import build, levels
from cpp_matmuls import Matmul
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.types import DType

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


PARTS = """
extern "C" void held(i32* counts, i64* done, i64 team, i64 parts) {
  in_parts(int(team), parts, [&](i64 at, i64 of) {
    // whoever begins the first part is held in it until all others are done, by other threads
    for (i64 n = 0; at == 0 && n < 4000000000 && __atomic_load_n(done, __ATOMIC_RELAXED) < of - 1; ++n) {}
    __atomic_fetch_add(counts + at, 1, __ATOMIC_RELAXED);
    if (at != 0 || *done == of - 1) __atomic_fetch_add(done, 1, __ATOMIC_RELAXED);
  });
}
extern "C" void counted(i32* counts, i64 team, i64 parts) {
  in_parts(int(team), parts, [&](i64 at, i64) { __atomic_fetch_add(counts + at, 1, __ATOMIC_RELAXED); });
}
extern "C" void how_many(i64* parts, i64 team, i64 items, i64 work) { *parts = parts_for(team, items, work); }
"""


@pytest.mark.quick(1)
def test_parts_that_a_slow_thread_has_not_begun_are_taken_by_others(three_threads: None) -> None:
    kernels = build(
        levels()[0], PARTS, {"held": "ppii", "counted": "pii", "how_many": "piii"}, ("kernel", "omp")
    )
    for team, parts in ((3, 24), (2, 16), (3, 7)):
        counts, done = torch.zeros(parts, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        kernels["held"](counts, done, team, parts)
        assert done.item() == parts and (counts == 1).all()
    for team, parts in ((3, 1), (3, 2), (3, 3), (2, 1000)):
        counts = torch.zeros(parts, dtype=torch.int32)
        kernels["counted"](counts, team, parts)
        assert (counts == 1).all(), (team, parts)
    # few items, short work and long work
    for items, work, expected in ((5, 10**9, 5), (1000, 10**6, 4), (1000, 24 * 10**6, 12), (1000, 10**9, 32)):
        found = torch.zeros(1, dtype=torch.int64)
        kernels["how_many"](found, 4, items, work)
        assert found.item() == expected


SHARES = """
extern "C" void shared(i64* found, i64 tiles, i64 blocks, i64 read) {
  const matmul_parts parts = matmul_share(1, tiles, blocks, 2, read);
  found[0] = parts.down, found[1] = parts.over;
}
"""


@pytest.mark.quick(1)
def test_two_threads_share_columns_where_both_would_read_much_of_a_weight() -> None:
    shared = build(levels()[0], SHARES, {"shared": "piii"}, ("matmul", "omp"))["shared"]
    # tiles of rows and blocks of columns of 3x3 windows: 512 channels of 7x7 pixels, 256, 128 and 64
    shapes = {(4, 16): [1, 2], (14, 8): [1, 2], (56, 4): [2, 1], (224, 2): [2, 1]}
    for (tiles, blocks), expected in shapes.items():
        found = torch.zeros(2, dtype=torch.int64)
        shared(found, tiles, blocks, 6)
        assert found.tolist() == expected
        # what costs nothing to read is shared out by rows
        shared(found, tiles, blocks, 0)
        assert found.tolist() == [2, 1]


def test_what_a_block_costs_to_read_counts_with_the_rows_of_a_tile() -> None:
    """Of a packed weight of f32 at full width, 84 sixteenths of a tile of one row."""
    text = backend("avx512").emit(Matmul(14, 512, 600, left="bmk", right="bkn").kernel()).text
    rows = re.search(r"row_count \+ (\d+)\) / (\d+)", text)
    assert rows is not None
    assert f"team, {max(1, round(83.2 / int(rows[2])))})" in text


def test_rows_that_are_all_packed_first_are_what_threads_share() -> None:
    """Each thread that had some columns would pack all of them."""
    text = backend("avx512").emit(Matmul(49, 512, 600, left="bkm", right="bnk").kernel()).text
    assert "matmul_dots<" in text and "packed_a + ((tile - tile_from)" in text
    assert "matmul_share(batch_count, tile_count, block_count, team, 0)" in text


WORK = """
extern "C" void worth(i64* found, i64 rows, i64 columns, i64 batch, i64 depth, i64 left, i64 right) {
  found[0] = matmul_work(batch * rows * columns, rows, batch, depth, left, right);
  found[1] = team_for(1000, found[0]);
}
"""


@pytest.mark.quick(1)
def test_few_rows_have_threads_for_the_weight_that_they_read(three_threads: None) -> None:
    """One row of 384 numbers times 1000 columns is 384,000 multiplications, and 1.5 MB to read."""
    worth = build(levels()[0], WORK, {"worth": "piiiiii"}, ("matmul", "omp", "kernel"))["worth"]
    for rows, columns, batch, depth, expected, team in (
        (1, 1000, 1, 384, 8 * 1000 * 384, 3),
        (1000, 1, 1, 384, 8 * 1000 * 384, 3),
        (1, 96, 1, 96, 8 * 96 * 96, 1),
        (1, 128, 12, 64, 12 * 8 * 128 * 64, 3),
        (49, 512, 1, 512, 49 * 512 * 512, 3),
        (1, 64, 1, 4, 8 * 64 * 8, 1),
    ):
        found = torch.zeros(2, dtype=torch.int64)
        worth(found, rows, columns, batch, depth, 8, 8)
        assert found.tolist() == [expected, team], (rows, columns)


def test_what_a_thread_reads_counts_by_its_bytes() -> None:
    for kind, number in ((DType.f32, 8), (DType.bf16, 4)):
        matmul = Matmul(1, 512, 600, dtype=kind, left="bmk", right="bnk")
        text = backend("avx512").emit(matmul.kernel()).text
        assert f"row_count, batch_count, depth_count, {number}, {number})" in text


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_by_several_threads(rows: int, three_threads: None) -> None:
    matmul = Matmul(rows, 700, 333, left="bmk", right="bnk")
    left, right = torch.randn(rows, 333), torch.randn(700, 333)
    out = torch.full((rows, 700), float("nan"))
    run = compiled(matmul.kernel())
    for _ in range(3):
        run(left, right, out.fill_(float("nan")))
        torch.testing.assert_close(out, (left.double() @ right.double().T).float(), rtol=1e-5, atol=1e-4)
