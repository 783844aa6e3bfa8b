"""Additions to a table of few rows on a wide device: sums over all that is added, beside eager mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from polyfuse.ir.nodes import Scatter
from wide_device import Planned, wide

Function = Callable[..., torch.Tensor]


def added(table: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return table.index_put((index,), rows * 2, accumulate=True)


def scatters(planned: Planned) -> int:
    return sum(isinstance(node, Scatter) for s in planned.schedules for node in s.graph.nodes)


def compared(function: Function, *operands: torch.Tensor) -> Planned:
    """Plan, run, and compare with f64; half precision only as closely as its results are rounded."""
    run, planned = wide(function, index_asserts=False)
    found = run(*operands)
    exact = [x.double() if x.is_floating_point() else x for x in operands]
    wanted = function(*exact)
    close = 2e-2 if found.dtype.itemsize == 2 else 1e-5
    torch.testing.assert_close(found.double(), wanted.double(), rtol=close, atol=close * 10, equal_nan=True)
    return planned


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64], ids=str
)
def test_types_and_negative_positions(dtype: torch.dtype) -> None:
    operands = (
        torch.randn(5, 6).mul(4).to(dtype),
        torch.randint(-5, 5, (30, 10)),
        torch.randn(30, 10, 6).mul(4),
    )
    planned = compared(added, operands[0], operands[1], operands[2].to(dtype))
    assert scatters(planned) == 0


@pytest.mark.quick(5)
@pytest.mark.parametrize("rows", [1, 2, 31])
@pytest.mark.parametrize("rest", [(), (1,), (3, 2)])
def test_sizes(rows: int, rest: tuple[int, ...]) -> None:
    index = torch.randint(0, rows, (rows * 40,))
    planned = compared(added, torch.randn(rows, *rest), index, torch.randn(rows * 40, *rest))
    assert scatters(planned) == 0


def test_values_that_repeat_and_special_numbers() -> None:
    values = torch.tensor([[1.0, float("inf"), float("nan"), -0.0]])
    planned = compared(added, torch.zeros(4, 4), torch.arange(4).repeat(50), values)
    assert scatters(planned) == 0


def test_rows_to_which_nothing_is_added() -> None:
    compared(added, torch.randn(8, 3), torch.full((300,), 7), torch.randn(300, 3))


def test_gradients_of_a_relative_bias() -> None:
    positions = (torch.arange(24)[:, None] - torch.arange(24)[None, :]).abs().clamp(max=7)

    def gradient(weight: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        given = scores.softmax(-1).sum(0).permute(1, 2, 0)
        return torch.ops.aten.embedding_dense_backward(given + weight[0], positions, 8, -1, False)

    assert scatters(compared(gradient, torch.randn(8, 2), torch.randn(3, 2, 24, 24))) == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("table", "index"),
    [((300, 40), 12000), ((64, 4), 1000), ((20, 3), 100)],
    ids=["large", "few for each", "few"],
)
def test_what_is_added_in_memory(table: tuple[int, int], index: int) -> None:
    operands = torch.randn(table), torch.randint(0, table[0], (index,)), torch.randn(index, table[1])
    assert scatters(compared(added, *operands)) == 1


def test_any_number_of_additions() -> None:
    run, planned = wide(added, dynamic=True, index_asserts=False)
    for count in (400, 777):
        table, index, rows = torch.randn(6, 3), torch.randint(0, 6, (count,)), torch.randn(count, 3)
        for x in (index, rows):
            torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_static(table)
        torch.testing.assert_close(run(table, index, rows), added(table, index, rows), rtol=1e-4, atol=1e-4)
    assert len(planned.schedules) == 1 and scatters(planned) == 0
