"""Rough times: what is computed, what is moved, and how well tiles fill a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_kernels import kernels_of
from polyfuse.kit import Machine, Work, fill, rounds, seconds, work_of

MACHINE = Machine(operations=1e9, moved=1e9, units=4, start=1e-6)


def test_the_work_of_loops():
    (kernel,) = kernels_of(lambda x, b: (x.sin() + b).relu(), torch.randn(8, 16), torch.randn(16))
    work = work_of(kernel)
    assert work.moved == 4 * (8 * 16 * 2 + 16)
    assert work.operations >= 3 * 8 * 16
    assert work_of(kernel, lambda op: 10.0 if op == "sin" else 1.0).operations == work.operations + 9 * 8 * 16


def test_a_matmul_counts_twice_for_each_step():
    (kernel,) = kernels_of(torch.mm, torch.randn(5, 7), torch.randn(7, 3))
    assert work_of(kernel) == Work(2.0 * 5 * 7 * 3, 4.0 * (5 * 7 + 7 * 3 + 5 * 3))


def test_sizes_that_are_not_known_are_those_of_the_example():
    (kernel,) = kernels_of(lambda x: x.sin(), torch.randn(6, 5), dynamic=True)
    assert work_of(kernel).moved == 4.0 * 6 * 5 * 2


def test_tiles_that_fill_badly():
    assert fill([(64, 32), (10, 10)]) == 1.0
    assert fill([(33, 32)]) == 33 / 64
    assert fill([(1, 16)]) == 1 / 16
    assert fill([(0, 16)]) == 1 / 16
    assert (rounds(1, 4), rounds(4, 4), rounds(5, 4), rounds(0, 4)) == (1, 1, 2, 1)


def test_more_work_takes_longer_and_a_better_division_less():
    work = Work(1e6, 1e6)
    base = seconds(work, MACHINE, 8)
    assert seconds(replace(work, operations=2e6), MACHINE, 8) > base
    assert seconds(replace(work, moved=2e6), MACHINE, 8) > base
    assert seconds(work, MACHINE, 8, filled=0.5) > base
    assert seconds(work, MACHINE, 8, again=1e6) > base
    assert seconds(work, MACHINE, 9) > base  # a round for one tile
    assert seconds(work, MACHINE, 1) > base  # three units have nothing to do
    assert seconds(work, replace(MACHINE, start=1e-3), 8) > base
    assert seconds(Work(0.0, 1e6), MACHINE, 4) == pytest.approx(1e-3 + 1e-6)
