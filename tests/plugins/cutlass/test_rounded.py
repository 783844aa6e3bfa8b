"""Which results are rounded before they leave a thread, and how the copy engine sees them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutlass_kernels import GELU, PLAIN, RESIDUAL, SCALED, product
from polyfuse.ir.kernel import Kernel
from polyfuse_cutlass.build.meta import KernelMeta, TensorMap
from polyfuse_cutlass.codegen.hopper import result_of
from polyfuse_cutlass.problem import problem_of
from polyfuse_cutlass.space import emit
from polyfuse_cutlass.target import Target
from polyfuse_cutlass.tiling import Tiling

WIDE = Tiling(1, 64, stages=4)
SWAPPED = replace(WIDE, swap=True)
TABLE = (
    "at = index i64 <i1>",
    "a = load bf16 bias[@0{{64}}] @(at)",
    "b = cast f32 (a)",
    "value = add f32 ({sum}, b)",
)
APART = ("a = load f32 scale[4*i1]", "value = mul f32 ({sum}, a)")


def rounded(kernel: Kernel, tiling: Tiling) -> bool:
    problem = problem_of(kernel)
    found = result_of(problem.swapped if tiling.swap else problem, tiling) is not None
    if not tiling.fault(problem):
        source = emit(kernel, tiling.config, Target())
        maps = KernelMeta.parse(source.meta).maps
        assert found == (len(maps) == 3) == ("put_matrices(fragment" in source.text)
    return found


@pytest.mark.parametrize("epilogue", (PLAIN, GELU, SCALED), ids=("plain", "gelu", "scaled"))
@pytest.mark.parametrize("out", ("bf16", "f16"))
def test_results_of_sixteen_bits_are_rounded_first(epilogue, out):
    assert rounded(product(64, 64, 64, out=out, epilogue=epilogue), WIDE)
    assert rounded(product(64, 72, 64, out=out, epilogue=epilogue, batch=3, dynamic=True), WIDE)
    assert rounded(product(64, 72, 64, out=out, epilogue=epilogue, pitch=80), WIDE)


@pytest.mark.parametrize("out", ("f32", "f8e4m3"))
def test_other_results_leave_as_sums(out):
    assert not rounded(product(64, 64, 64, out=out), WIDE)


def test_what_varies_with_row_and_column_is_added_to_sums_that_lie_side_by_side():
    assert not rounded(product(64, 64, 64, epilogue=RESIDUAL), WIDE)


@pytest.mark.parametrize("epilogue", (TABLE, APART), ids=("table", "apart"))
def test_what_is_loaded_one_by_one_goes_with_sums(epilogue):
    assert not rounded(product(256, 64, 64, epilogue=epilogue), WIDE)


@pytest.mark.parametrize(("columns", "pitch"), ((65, 72), (68, 0), (64, 68)))
def test_rows_that_do_not_begin_where_the_copy_engine_stores(columns, pitch):
    assert not rounded(product(64, columns, 64, pitch=pitch), WIDE)


def test_an_address_that_may_be_odd():
    kernel = product(64, 64, 64)
    args = tuple(replace(arg, aligned=False) if arg.name == "out0" else arg for arg in kernel.args)
    assert not rounded(replace(kernel, args=args), WIDE)


def test_neighbours_in_memory_must_be_columns_of_a_tile():
    plain, transposed = product(64, 64, 64), product(64, 64, 64, index="64*i1 + i0")
    assert [rounded(plain, SWAPPED), rounded(transposed, SWAPPED)] == [False, True]
    assert [rounded(plain, WIDE), rounded(transposed, WIDE)] == [True, False]


@pytest.mark.parametrize(
    "tiling",
    (
        Tiling(1, 32, stages=4),
        Tiling(1, 64, split=2, stages=6),
        Tiling(1, 64, consumers=1, stages=4, used=40),
    ),
    ids=("narrow", "split", "a part of the rows"),
)
def test_tilings_whose_results_leave_as_sums(tiling):
    assert not rounded(product(64, 64, 64), tiling)


def test_much_arithmetic_that_matmuls_hide_is_done_in_a_loop():
    pingpong = Tiling(1, 64, pingpong=True, stages=4)
    assert [rounded(product(64, 64, 64, epilogue=e), pingpong) for e in (SCALED, GELU)] == [True, False]


def test_the_copy_engine_sees_the_result():
    kernel = product(300, 72, 64, batch=3, dynamic=True, epilogue=SCALED, pitch=80)
    meta = KernelMeta.parse(emit(kernel, WIDE.config, Target()).meta)
    number = [arg.name for arg in meta.args].index("out0")
    strides = ("160", "160*s0")
    assert meta.maps[2] == TensorMap(number, "0", 9, ("72", "s0", "3"), strides, (64, 16, 1))
