"""What a tile of a matmul asks for before it is added up."""

from __future__ import annotations

import re

import pytest

from cpp_kernels import backend
from cpp_matmuls import Matmul
from polyfuse_cpp.matmul.problem import matmul_of
from polyfuse_cpp.matmul.touched import touched_by


def test_results_and_a_residual_are_asked_for() -> None:
    kernel = Matmul(300, 100, 600, left="bkm", residual=True).kernel()
    found = touched_by(matmul_of(kernel))
    assert len(found) == 2
    assert {one.pitch for one in found} == {100}


@pytest.mark.parametrize(
    ("rows", "columns", "asks"), [(300, 100, "first"), (300, 12, "all"), (2, 100, "none")]
)
def test_the_first_tile_of_rows_asks_for_the_next_ones(rows: int, columns: int, asks: str) -> None:
    text = backend("avx2").emit(Matmul(rows, columns, 600, left="bmk", right="bkn").kernel()).text
    tiles = [line for line in text.splitlines() if "(left_at, " in line]
    assert tiles
    for tile in tiles:
        height = re.search(r"matmul_tile<(\d+)", tile)
        assert height is not None
        ahead = int(height[1]) * 600
        fetched = {"first": f"(block == block_a ? {ahead} : 0)", "all": str(ahead), "none": "0"}[asks]
        assert f"(left_at, 600, {fetched}, " in tile
