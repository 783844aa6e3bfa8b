"""What a tile of a matmul asks for before it is added up."""

from __future__ import annotations

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


@pytest.mark.parametrize(("rows", "asks"), [(300, True), (2, False)])
def test_a_tile_asks_for_rows_where_there_are_more(rows: int, asks: bool) -> None:
    text = backend("avx2").emit(Matmul(rows, 100, 600, left="bmk", right="bkn").kernel()).text
    assert ("matmul_fetch_rows<" in text) is asks
