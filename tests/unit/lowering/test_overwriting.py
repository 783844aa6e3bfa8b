"""Scattering into storage that nobody needs any more, in place of a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import Lowered, check, compiled

from polyfuse.ir.nodes import Scatter
from polyfuse.ir.ops import CHECK_MODE

I = torch.tensor([3, 0, 3, -1])


def copies(record: Lowered) -> int:
    """Operands that were copied to be scattered into."""
    return list(record.report.realized.values()).count("scattered into")


def targets(record: Lowered) -> list[str]:
    """Kinds of the buffers that are scattered into."""
    graph = record.graph
    found = (n for n in graph.nodes if isinstance(n, Scatter) and n.mode != CHECK_MODE)
    return [graph.buffers[n.target].kind for n in found]


def test_an_intermediate_that_dies_is_scattered_into() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (a @ b).index_put((i,), b[:4].sin(), accumulate=True).index_put((i.flip(0),), b[:4]) * 2

    record = check(fn, torch.randn(6, 5), torch.randn(5, 7), torch.tensor([3, 0, 5, -1]))
    assert copies(record) == 0 and targets(record) == ["temp", "temp"]


READ_AGAIN: dict[str, Callable[..., Any]] = {
    "read later": lambda a, b, i: ((c := a @ b).index_put((i,), b[0]), c + 1),
    "returned": lambda a, b, i: ((c := a @ b).index_put((i,), b[0]), c),
    "a view returned": lambda a, b, i: ((c := a @ b).index_put((i,), b[0]), c[1:]),
    "read by an expression": lambda a, b, i: (
        (d := (c := a @ b) * 3)[:0],
        c.index_put((i,), b[0]),
        d.sum(),
    )[1:],
    "put into itself": lambda a, b, i: (c := a @ b).index_put((i.repeat(2)[:6],), c, accumulate=True),
    "added to itself": lambda a, b, i: (c := a @ b).scatter_add(0, torch.zeros(6, 7, dtype=I.dtype), c),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", READ_AGAIN)
def test_an_intermediate_that_is_needed_is_copied(name: str) -> None:
    record = check(READ_AGAIN[name], torch.randn(6, 5), torch.randn(5, 7), I)
    assert copies(record) == 1


def test_an_input_is_changed_where_it_is() -> None:
    def fn(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, position, new)
        cache.index_copy_(1, position + 1, new * 2)
        return (cache * 2).sum(1)

    record = check(fn, torch.randn(2, 9, 4), torch.randn(2, 1, 4), torch.tensor([3]))
    assert copies(record) == 0 and targets(record) == ["input", "input"]
    assert len(record.graph.buffers) <= 6  # the status of index checks too


def test_an_input_of_unknown_size_is_changed_where_it_is() -> None:
    def fn(cache: torch.Tensor, new: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache[:, position] = new
        return cache.amax(1)

    record = check(fn, torch.randn(2, 9, 4), torch.randn(2, 1, 4), torch.tensor([3]), dynamic=True)
    assert copies(record) == 0


def test_values_made_of_the_target_are_computed_before() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x[i] += x[i.flip(0)] * 2
        return x.sum()

    record = check(fn, torch.randn(5, 3), torch.tensor([3, 0, 2, -1]))
    assert copies(record) == 0


def test_indices_made_of_the_target_are_computed_before() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.scatter_(1, (x.abs() * 10).long() % 4, 2.0)
        return x.sum()

    record = check(fn, torch.randn(5, 4))
    assert copies(record) == 0


NEEDED: dict[str, Callable[..., Any]] = {
    "the old content is returned": lambda x, i: (x.clone(), x.index_fill_(0, i, 2.0).sum())[0],
    "the result is returned too": lambda x, i: (x.copy_(y := x.index_fill(0, i, 2.0)), y)[1],
    "a view of the result is returned": lambda x, i: (x.copy_(y := x.index_fill(0, i, 2.0)), y[1:])[1],
    "the values are the target": lambda x, i: x.copy_(x.index_copy(0, i, x[: i.numel()])).sum(),
    "the result outlives what comes after": lambda x, i: (
        (y := x.index_fill(0, i, 2.0)),
        x.copy_(y.sin()),
        y,
    )[2],
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", NEEDED)
def test_an_input_that_is_needed_is_copied(name: str) -> None:
    check(NEEDED[name], torch.randn(6, 3), torch.tensor([3, 0, 2]))


def test_what_is_read_between_is_what_was_written_then() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x * 2
        x.index_fill_(0, i, 2.0)
        between = x + 1
        x.mul_(3)
        x.index_fill_(0, i + 1, 5.0)
        return before, between, x + before

    check(fn, torch.randn(6, 3), torch.tensor([3, 0, 2]))


def test_two_inputs_that_are_exchanged() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> None:
        a, b = x.index_fill(0, i, 2.0), y.index_fill(0, i, 3.0)
        x.copy_(b)
        y.copy_(a)

    check(fn, torch.randn(6, 3), torch.randn(6, 3), torch.tensor([3, 0, 2]))


def test_an_input_that_is_added_to_itself() -> None:
    def fn(a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        a.copy_(a.index_add(0, i, a))
        return a + 1

    record = check(fn, torch.randn(4, 5), I % 4)
    assert copies(record) == 1


def test_an_input_whose_elements_share_memory_stays_apart() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_fill(0, i, 2.0)

    record = check(fn, torch.randn(1, 3).expand(6, 3), torch.tensor([3, 0, 2]), layout=False)
    assert copies(record) == 1


def test_a_result_of_an_operator_is_copied() -> None:
    # an operator may keep, or share, what it returns
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.linalg.qr(x)[0].index_fill(0, i, 2.0)

    record = check(fn, torch.randn(6, 3), torch.tensor([3, 0, 2]), native=False)
    assert copies(record) == 1


def test_gradients_of_a_tied_embedding_are_one_table() -> None:
    weight = torch.randn(50, 8, requires_grad=True)
    i, j = torch.randint(0, 50, (6,)), torch.randint(0, 50, (6,))

    def loss(w: torch.Tensor) -> torch.Tensor:
        return ((w[i].sin() + torch.nn.functional.embedding(j, w)) @ w.t()).square().sum()

    run, record = compiled(loss)
    mine, theirs = (weight.detach().clone().requires_grad_() for _ in range(2))
    run(mine).backward()
    loss(theirs).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    tables = [b for b in record.graphs[1].buffers.values() if b.size == (50, 8) and b.kind == "temp"]
    assert len(tables) == 1


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_sums_in_half_precision_stay_wide_between_scatters(numerics: str) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = torch.zeros(9, 4, dtype=x.dtype).index_add(0, i, v)
        return x.index_add(0, i.flip(0), v * 2)

    i, v = torch.tensor([3, 0, 3, 8]), torch.tensor([[0.5, 1, 2, -4]]).expand(4, 4).bfloat16()
    record = check(fn, torch.zeros(1).bfloat16(), i, v, exact=True, numerics=numerics)
    assert copies(record) == (1 if numerics == "fast" else 2)
