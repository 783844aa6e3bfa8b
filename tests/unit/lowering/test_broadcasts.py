"""Slow operations on values that are broadcast: loops that would compute them again get them stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowered import check

from polyfuse.lowering.readers import reads_across, recomputed_points
from polyfuse.plugin import TargetInfo

IMAGE = (2, 8, 4, 4)
LAST = {"memory_format": torch.channels_last}
SHAPES: dict[str, tuple[Any, Any, int]] = {
    "rows": (torch.empty(8), torch.empty(4, 8), 3 * 8),
    "columns": (torch.empty(4, 1), torch.empty(4, 8), 0),
    "channels": (torch.empty(1, 8, 1, 1), torch.empty(IMAGE), 8),
    "channels last": (torch.empty(1, 8, 1, 1), torch.empty(IMAGE).to(**LAST), (2 * 16 - 1) * 8),
    "positions": (torch.empty(2, 1, 4, 4), torch.empty(IMAGE), 7 * 32),
    "positions, channels last": (torch.empty(2, 1, 4, 4), torch.empty(IMAGE).to(**LAST), 0),
    "expanded": (torch.empty(1, 8).expand(4, 8), torch.empty(4, 8), 3 * 8),
    "all of it": (torch.empty(4, 8), torch.empty(4, 8), 0),
    "one number": (torch.empty(()), torch.empty(4, 8), 0),
    "a row of a sum": (torch.empty(4, 8), torch.empty(8), 0),
    "no broadcast": (torch.empty(3, 8), torch.empty(4, 8), 0),
}
"""A value, what reads it, and at how many points that computes it again."""


@pytest.mark.parametrize("name", SHAPES)
def test_recomputed_points(name: str):
    value, result, expected = SHAPES[name]
    assert recomputed_points(value, result, None) == expected
    assert recomputed_points(value, (result, None), None) == expected


def stores(function: Any, *args: torch.Tensor, points: int) -> int:
    """Loops of the lowered function on a device that recomputes so many points."""
    return len(check(function, *args, target=TargetInfo(recomputed_points=points)).graph.nodes)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("points", "count"), [(0, 1), (100, 2), (1000, 1)])
def test_gates_are_stored_where_they_cost_more_than_a_launch(points: int, count: int):
    x, gate = torch.randn(64, 8), torch.randn(8)
    assert stores(lambda x, gate: x * torch.sigmoid(gate), x, gate, points=points) == count
    assert stores(lambda x, gate: x * torch.sigmoid(gate).expand_as(x), x, gate, points=points) == count


@pytest.mark.parametrize("name", SHAPES)
def test_values_read_across_their_memory(name: str):
    value, result, _ = SHAPES[name]
    assert not reads_across(value, result, None)


def test_values_read_across_their_memory_many_times():
    assert reads_across(torch.empty(8, 4).t(), torch.empty(8, 4, 8), None)
    assert not reads_across(torch.empty(8, 4).t(), torch.empty(7, 4, 8), None)
    assert not reads_across(torch.empty(4, 8), torch.empty(8, 4, 8), None)


@pytest.mark.quick(2)
@pytest.mark.parametrize(("points", "count"), [(0, 1), (100, 2), (10_000, 1)])
def test_values_at_positions_from_data_are_stored_where_they_are_broadcast(points: int, count: int):
    x, table, at = torch.randn(8, 4, 16), torch.randn(9, 4), torch.randint(-9, 9, (16,))
    plain = stores(lambda x, row, at: x[0] * row[at], x, torch.randn(9), at, points=points)
    bias = stores(lambda x, table, at: x + table[at].t(), x, table, at, points=points)
    row = stores(lambda x, row, at: x * row[at], x, torch.randn(9), at, points=points)
    assert bias - plain == row - plain == count - 1


def test_rows_at_positions_from_data_are_read_again():
    x, table, at = torch.randn(8, 4, 64), torch.randn(9, 64), torch.randint(9, (4,))
    one = stores(lambda x, table, at: x[0] + table[at], x, table, at, points=0)
    assert stores(lambda x, table, at: x + table[at], x, table, at, points=1) == one


def test_cheap_values_and_values_of_a_row_are_not_stored():
    x = torch.randn(64, 8)
    assert stores(lambda x, b: x * (b + 1), x, torch.randn(8), points=1) == 1
    assert stores(lambda x, b: x * torch.exp(b), x, torch.randn(64, 1), points=1) == 1


def test_logarithms_of_columns_are_stored():
    x = torch.randn(64, 8)
    by_column, by_row = (stores(lambda x, d=d: x.log_softmax(d), x, points=1) for d in (0, 1))
    assert by_column == by_row + 1
