"""Sums down columns join kernels that work along the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from polyfuse.plugin import TargetInfo
from polyfuse.schedule import Launch
from polyfuse.schedule.reductions.column_reductions import _rows_of_group
from wide_device import WIDE, Planned, WideBackend, wide

ROWS, COLUMNS = 200, 300


class Summing(WideBackend):
    """Adds up what groups of rows scatter to one index."""

    chosen = replace(WIDE, column_reductions=True, row_bytes=1 << 20)


class OnThreads(WideBackend):
    """A host, of whose caches a matrix of `ROWS` rows does not fit into the one of a core."""

    chosen = TargetInfo(column_reductions=True, column_bytes=32 << 10)


def reads(record: Planned, graph: int, elements: int) -> int:
    """How often a graph's kernels read arguments of so many elements."""
    kernels = [s.kernel for s in record.schedules[graph].steps if isinstance(s, Launch)]
    return sum(
        arg.kind in ("in", "inout") and arg.numel == elements for kernel in kernels for arg in kernel.args
    )


def gradients(fn: Callable[..., torch.Tensor], args: list[torch.Tensor], weight: torch.Tensor) -> list[Any]:
    given = [a.detach().clone().requires_grad_() for a in args]
    return list(torch.autograd.grad(fn(*given), given, weight))


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


NORMS: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (COLUMNS,), w, b), 2),
    "rms norm": (lambda x, w, b: rms_norm(x, w) + b, 2),
}

MERELY_PASSING: dict[str, Callable[..., torch.Tensor]] = {
    "bias and gelu": lambda x, w, b: F.gelu(x + b) * w,
    "bias and relu": lambda x, w, b: F.relu(x + b) * w,
    "two sums without a row": lambda x, w, b: torch.tanh(x * w + b),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (8, 25, COLUMNS), (ROWS - 3, COLUMNS)])
def test_gradients_of_weights_read_rows_once(name: str, shape: tuple[int, ...]) -> None:
    fn, expected = NORMS[name]
    args = [torch.randn(shape), torch.randn(COLUMNS), torch.randn(COLUMNS)]
    weight = torch.randn(shape)
    run_wide, record = wide(fn, backend=Summing)
    for got, wanted in zip(gradients(run_wide, args, weight), gradients(fn, args, weight), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert any("columns are added up" in d.reason for d in record.schedules[1].decisions)
    elements = torch.Size(shape).numel()
    assert reads(record, 1, elements) <= expected + 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", MERELY_PASSING)
def test_work_that_merely_passes_through_rows_is_no_company(name: str) -> None:
    fn = MERELY_PASSING[name]
    args = [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS), torch.randn(COLUMNS)]
    weight = torch.randn(ROWS, COLUMNS)
    run_wide, record = wide(fn, backend=Summing)
    for got, wanted in zip(gradients(run_wide, args, weight), gradients(fn, args, weight), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert not any("columns are added up" in d.reason for d in record.schedules[1].decisions)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "name, rows",
    [("layer norm", ROWS), ("bias and relu", ROWS), ("bias and relu", 130), ("bias and gelu", ROWS)],
)
def test_threads_add_up_what_they_pass_through(name: str, rows: int) -> None:
    fn = NORMS[name][0] if name in NORMS else MERELY_PASSING[name]
    args = [torch.randn(rows, COLUMNS), torch.randn(COLUMNS), torch.randn(COLUMNS)]
    weight = torch.randn(rows, COLUMNS)
    run_host, record = wide(fn, backend=OnThreads)
    for got, wanted in zip(gradients(run_host, args, weight), gradients(fn, args, weight), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    joined = any("columns are added up" in d.reason for d in record.schedules[1].decisions)
    # fewer rows are as well read twice, and an error function takes longer than memory
    assert joined == (rows == ROWS and "gelu" not in name)


def test_a_sum_by_itself_stays_as_it_is() -> None:
    x = torch.randn(ROWS, COLUMNS)
    run_wide, record = wide(lambda x: x.sum(0), backend=Summing)
    torch.testing.assert_close(run_wide(x), x.sum(0), rtol=1e-4, atol=1e-4)
    assert not any("columns are added up" in d.reason for d in record.schedules[0].decisions)


def test_work_that_needs_the_sums_is_no_company() -> None:
    x = torch.randn(ROWS, COLUMNS)
    run_wide, record = wide(lambda x: (x - x.mean(0)).exp(), backend=Summing)
    torch.testing.assert_close(run_wide(x), (x - x.mean(0)).exp(), rtol=1e-4, atol=1e-4)
    assert not any("columns are added up" in d.reason for d in record.schedules[0].decisions)


@pytest.mark.parametrize("columns", [20, 255])
def test_short_rows_stay_apart(columns: int) -> None:
    x = torch.randn(ROWS, columns)
    run_wide, record = wide(lambda x: (x.amax(1), x.sum(0)), backend=Summing)
    for got, wanted in zip(run_wide(x), (x.amax(1), x.sum(0)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert not any("columns are added up" in d.reason for d in record.schedules[0].decisions)


def test_sums_in_a_set_order_are_not_scattered() -> None:
    x = torch.randn(ROWS, COLUMNS)
    run_wide, record = wide(lambda x: (x.amax(1), x.sum(0)), backend=Summing, deterministic="on")
    torch.testing.assert_close(run_wide(x)[1], x.sum(0), rtol=1e-4, atol=1e-4)
    assert not any("columns are added up" in d.reason for d in record.schedules[0].decisions)


def test_columns_of_transposed_matrices() -> None:
    x = torch.randn(COLUMNS, ROWS).t()
    run_wide, _ = wide(lambda x: (x.amax(1), x.sum(0)), backend=Summing)
    for got, wanted in zip(run_wide(x), (x.amax(1), x.sum(0)), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [256, 768, 1024, 4096, 8192])
@pytest.mark.parametrize("rows", [1100, 8000, 16384, 1_000_000])
def test_groups_keep_a_device_busy(columns: int, rows: int) -> None:
    blocks = 528
    count = _rows_of_group(rows, columns, blocks)
    groups = -(-rows // count)
    assert groups >= blocks / 2
    assert groups * columns <= 2 * blocks * max(columns, 4096)
    if rows > 8 * blocks * max(1, 4096 // columns):
        assert groups * max(columns, 256) >= blocks * 2048


@pytest.mark.parametrize("rows", [100, 2048, 1_000_000])
def test_groups_on_threads_do_not_depend_on_their_number(rows: int) -> None:
    count = _rows_of_group(rows, 768, 0)
    assert count >= 32 and -(-rows // count) <= 64
