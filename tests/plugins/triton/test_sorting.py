"""Sorting whole rows in registers: beside eager mode, and through Triton's compiler."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

import torch

from polyfuse.base.settings import Settings
from polyfuse.ir.types import DType
from polyfuse.plugin import Source
from polyfuse.symbolic import axis, axis_size, symbol
from polyfuse_triton.build.meta import KernelMeta
from polyfuse_triton.sort.kernel import sort_kernel, sort_source
from polyfuse_triton.sort.ranks import rank_source
from polyfuse_triton.sort.rows import Rows
from triton_interpreted import in_interpreter
from triton_sorting import faults_of_few_rows, faults_of_sorting, faults_of_what_is_left
from triton_written import faults_of_checked_sorting

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_beside_eager_mode(dtype):
    assert in_interpreter(faults_of_sorting, dtype) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.int8, torch.int64), ids=str)
def test_few_long_rows(dtype):
    assert in_interpreter(faults_of_few_rows, dtype) == []


@pytest.mark.slow
def test_any_number_of_rows():
    assert in_interpreter(faults_of_sorting, torch.float32, True) == []


def test_what_the_library_does():
    assert in_interpreter(faults_of_what_is_left) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "arch", [pytest.param(80, marks=pytest.mark.slow), 90, pytest.param(100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("written", "dtype", "length"),
    [
        (sort_source, DType.f32, 1000),
        (sort_source, DType.bf16, 64),
        (sort_source, DType.i32, 5),
        (rank_source, DType.i64, 4096),
        (rank_source, DType.f32, 100),
    ],
)
def test_compiles_without_spilling(written, dtype, length, arch):
    from polyfuse_triton.build.pipeline import compile_kernel, function_of

    steps = ((3 * length, length, 1),) * 3
    source = written(Rows(dtype, length, length, True, (400, 3), steps), True)
    function = function_of(source.text.replace(Source.SYMBOL, "k_test"), "k_test")
    assert compile_kernel(function, KernelMeta.parse(source.meta), arch, 0, False).spilled_bytes == 0


def test_the_checker_compares_what_is_sorted():
    """Honest kernels are silent, and a defect in each frame is named and mended."""
    assert in_interpreter(faults_of_checked_sorting, "interpreted") == []


def test_programs_that_sort_can_be_stored():
    count = axis("i0", symbol("s0"))
    sizes = axis_size(count)
    rows = Rows(DType.f32, 40, 5, True, (sizes,), ((40, 1), (5, 1), (5, 1)))
    kernel = sort_kernel(rows, 1, True, Settings.resolve(None, {}))
    again = pickle.loads(pickle.dumps(kernel))
    assert kernel.storable and again.storable and again.key == kernel.key
    assert again.key != sort_kernel(replace(rows, stored=6), 1, True, Settings.resolve(None, {})).key
