"""Parts of tensors that are assigned to: written where they are, or chosen by who reads them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import Lowered, check

from polyfuse.ir.nodes import Pointwise, Scatter
from polyfuse.ir.ops import CHECK_MODE
from polyfuse.symbolic import axis_size

P = torch.tensor([5, 2])


def written(record: Lowered) -> tuple[int, int]:
    """How many elements loops write into inputs, and into memory of the graph's own."""
    graph, found = record.graph, {"input": 0, "temp": 0}
    for node in graph.nodes:
        if isinstance(node, (Pointwise, Scatter)) and getattr(node, "mode", "") != CHECK_MODE:
            name = node.target if isinstance(node, Scatter) else node.output
            found[graph.buffers[name].kind] += math.prod(map(axis_size, node.axes))
    return found["input"], found["temp"]


def at_rows(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    c[:, 3:5] = n
    return c[:, :5].sum(1)


def at_half_of_the_batch(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    c[:1, 3:5] = n[:1]
    return c[:1, :5] * 2


def at_one(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    c[:, -1] = n[:, 0]
    return c.amax(1)


def in_steps(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    c.narrow(1, 2, 4)[:, ::2].copy_(n)
    return c + 1


def by_data_in_a_part(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    layer = c[1]
    layer.index_copy_(0, p, n[0])
    return layer * 2


def by_data_in_each_part(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    found = n[0]
    for k in range(2):
        c[k].index_copy_(0, p, found)
        found = c[k][:2] + found
    return found


def twice(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    c[:, :2] = n
    first = c.sum()
    c[:, 1:3] = n * 2
    return c.sum() + first


def from_the_old(c: torch.Tensor, n: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    c[:, 4:6] = c[:, 1:2] * 2 + n
    return c.sum(0)


IN_PLACE: dict[str, tuple[Callable[..., Any], int]] = {
    "rows": (at_rows, 16),
    "half of the batch": (at_half_of_the_batch, 8),
    "one": (at_one, 8),
    "steps in a part": (in_steps, 16),
    "by data in a part": (by_data_in_a_part, 8),
    "by data in each part": (by_data_in_each_part, 16),
    "twice": (twice, 32),
    "from the old content": (from_the_old, 16),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_part_of_an_input_is_written_where_it_is(name: str, dtype: torch.dtype) -> None:
    fn, count = IN_PLACE[name]
    cache, new = (torch.randint(-9, 9, size).to(dtype) for size in ((2, 9, 4), (2, 2, 4)))
    record = check(fn, cache, new, P)
    assert written(record)[0] == count
    assert "scattered into" not in record.report.realized.values()


NEEDED: dict[str, Callable[..., Any]] = {
    "the old content is returned": lambda c, n, p: (c.clone(), c[:, 3:5].copy_(n))[0],
    "a part of the old content is returned": lambda c, n, p: (
        c[0] * 1,
        c[0, p].copy_(n[0]),
        c[:, :2].fill_(3),
    )[0],
    "the content is moved": lambda c, n, p: (c[:, 1:].copy_(c[:, :-1].clone()), c.sum())[1],
    "the target is a result": lambda c, n, p: (c[:, 3:5].copy_(n), c)[1],
    "a part of the target is a result": lambda c, n, p: (c[:, 3:5].copy_(n), c[0])[1],
    "data say where in what is not put back": lambda c, n, p: c[1].index_copy(0, p, n[0]),
    "two parts overlap": lambda c, n, p: (c[:, 3:5].copy_(n), c[0].mul_(2), c[:, 4].add_(1), c.sum())[3],
    "other strides": lambda c, n, p: (c.transpose(0, 1)[3:5].copy_(n.transpose(0, 1)), c.sum(1))[1],
    "by a mask": lambda c, n, p: (c[0].masked_fill_(c[0] > 1, 2), c[:, :2].add_(n), c.sum())[2],
    "nothing": lambda c, n, p: (c[:, 3:3].fill_(1), c[:, 9:].add_(1), c.sum())[2],
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", NEEDED)
def test_what_is_needed_later_is_what_it_was(name: str) -> None:
    check(NEEDED[name], torch.randn(2, 9, 4), torch.randn(2, 2, 4), P)


def test_a_position_that_varies_and_is_a_number() -> None:
    """As in Llama: the next rows of a cache, and a look at all up to them."""

    def fn(cache: torch.Tensor, new: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        start, count = past.shape[0], new.shape[1]
        cache[: new.shape[0], start : start + count] = new
        return cache[: new.shape[0], : start + count].sum(1)

    record = check(fn, torch.randn(2, 9, 4), torch.randn(2, 3, 4), torch.empty(4), dynamic=True)
    assert "scattered into" not in record.report.realized.values()
    nodes = [n for n in record.graph.nodes if isinstance(n, Pointwise)]
    assert [record.graph.buffers[n.output].kind for n in nodes] == ["input"]


BOUNDS = [(1, 3, 1), (0, 9, 1), (-2, None, 1), (2, 1, 1), (0, 4, 2), (0, 4, 1), (1, 4, 3)]


@pytest.mark.quick(4)
@pytest.mark.parametrize(("start", "end", "step"), BOUNDS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_slices_of_results(start: int, end: Any, step: int, dim: int) -> None:
    """The result has the strides of what is assigned to."""
    apart = torch.randn(4, 5, 9)[..., :6]  # rows with gaps between them
    for base in (torch.randn(4, 5, 6), torch.randn(6, 5, 4).permute(2, 1, 0), apart):
        shape = base.movedim(dim, 0)[slice(start, end, step)].movedim(0, dim).shape
        check(lambda x, y: x.slice_scatter(y, dim, start, end, step), base, torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32])
@pytest.mark.parametrize(("dim", "index"), [(0, 2), (1, -1), (-1, 0)])
def test_one_index_of_results(dim: int, index: int, dtype: torch.dtype) -> None:
    """What is put there may have another type and other strides: the result has those of the whole."""
    for base in (torch.randn(4, 5, 6), torch.randn(6, 5, 4).permute(2, 1, 0)):
        source = (9 * torch.randn(base.select(dim, index).shape[::-1])).to(dtype).t()
        check(lambda x, y: x.select_scatter(y, dim, index), base, source)


def test_a_result_that_is_stored_anyway_is_written_to() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a @ b
        c[1:3] = 0
        return c

    assert written(check(fn, torch.randn(6, 5), torch.randn(5, 7))) == (0, 14)


def test_sizes_that_vary() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z[1 : 1 + y.shape[0]] = y
        z[:, -1] = y.sum()
        return z.cos()

    check(fn, torch.randn(6, 4), torch.randn(3, 4), dynamic=True)


def test_gradients_flow_to_both() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x.sin()
        z[:, 1:3] = y
        z[0] = z[1] * 2
        return torch.autograd.grad((z * z).sum(), (x, y))

    check(fn, torch.randn(3, 5, requires_grad=True), torch.randn(3, 2, requires_grad=True))
