"""Symbolic sizes: one graph serves other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import compare, compiled

from requirements import torch_version

F = torch.nn.functional


def _views(x: torch.Tensor) -> Any:
    y = x * 2
    return [
        y.view(x.shape[0], 2, -1).permute(1, 0, 2).reshape(-1, 3) + 1,
        y[1:-1].flip(0) + 1,
        torch.cat([y, x], 0)[2:],
        y.t() @ x,
        x.expand(4, *x.shape) * y.shape[0],
    ]


def _rows(x: torch.Tensor) -> Any:
    return [
        x.softmax(0),
        x.softmax(1),
        F.layer_norm(x, (6,)),
        x.var(0),
        x.mean(),
        x.argmax(0),
        x.cumsum(0),
        x / x.shape[0],
        x.sum(0, keepdim=True),
    ]


def _indices(x: torch.Tensor) -> Any:
    n = x.shape[0]
    i = torch.arange(n) * 2 % n
    return [
        x[i],
        x.index_add(0, i, x),
        torch.tril(torch.ones(n, n)),
        F.pad(x, (1, 1, 2, 0)),
        torch.full((n,), n),
        x.scatter(1, (x > 0).long(), 0.0),
        x.repeat(2, 1),
        x.chunk(2, 1)[1] + 1,
    ]


def _images(x: torch.Tensor) -> Any:
    n = x.shape[0]
    y = x.view(1, 1, n, 6).expand(n, 2, n, 6)
    return [
        F.max_pool2d(y, 2, 2),
        F.avg_pool2d(y, 3, 1, 1),
        F.adaptive_avg_pool2d(y, 1),
        F.interpolate(y, scale_factor=2),
    ]


@pytest.mark.quick(1)
@pytest.mark.parametrize("fn", [_views, _rows, _indices, _images])
def test_other_sizes_same_graph(fn: Callable[[torch.Tensor], Any]) -> None:
    run, record = compiled(fn, dynamic=True)
    for n in (5, 9, 12):
        x = torch.randn(n, 6)
        torch._dynamo.mark_dynamic(x, 0)
        compare(run(x), fn(x))
    # torch 2.11 traces images of some of these sizes anew
    assert len(record.graphs) <= 1 + (fn is _images and torch_version() < (2, 12))
    assert not record.report.fallbacks, record.report.text()


def test_fractions_of_sizes() -> None:
    def fn(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return (
            torch.var(x, 0, correction=1.5),
            torch.var_mean(x, 0, correction=n // 2),
            torch.std(x, 0, correction=n / 4),
            torch.arange(n / 2, n * 2, 0.5),
        )

    run, _ = compiled(fn, dynamic=True)
    for n in (5, 9):
        x = torch.randn(n, 6)
        compare(run(x), fn(x))


def test_a_fraction_that_is_known() -> None:
    def fn(x: torch.Tensor, p: float) -> Any:
        return torch.dist(x, x + 1, p), x * (p + 0.5)

    run, _ = compiled(fn, dynamic=True)
    x = torch.randn(5, 6, requires_grad=True)
    (actual,) = torch.autograd.grad(run(x, 2.0)[1].sum(), x)
    compare(actual, torch.full_like(x, 2.5))
    compare(run(x.detach(), 4.5), fn(x.detach(), 4.5))


def _rounded(x: torch.Tensor) -> Any:
    n = x.shape[0]
    few, most = round(n * 0.4), round(n / 3 * 2)
    return [
        x[:few] + 1,
        x.new_zeros(most, few) + few,
        F.interpolate(x[None, None], size=(round(n * 1.5), few)),
        torch.cat([x[:most] * 2, x[most:]]),
        torch.arange(round(n * 1.7)) * 2.0,
        x * round(n * 0.37),
        x[: int(n * (1 / 3))] + n * (1 / 3),
    ]


def test_sizes_that_python_rounds() -> None:
    run, record = compiled(_rounded, dynamic=True)
    for n in (12, 25, 30, 15):
        x = torch.randn(n, 6)
        compare(run(x), _rounded(x))
    assert not record.report.fallbacks, record.report.text()


def test_numbers_rounded_to_digits_are_what_python_says() -> None:
    """Only the host rounds to decimals as Python does; the operator that takes such a number is eager's."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * round(x.shape[0] * 0.37, 1)

    run, record = compiled(fn, dynamic=True)
    for n in (5, 12, 25):
        x = torch.randn(n, 6)
        compare(run(x), fn(x))
    assert [f.op for f in record.report.fallbacks] == ["aten.mul.Tensor"]


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", [(4, 8), (8, 4), (12, 12)])
def test_a_size_that_follows_from_others_broadcasts(first: tuple[int, int]) -> None:
    """The number of rows is a division, of which only tracing the product says that it gives one."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        x, y = x.view(-1, 4), y.view(-1, 4)
        return x * y, (x - y).sum(0), torch.where(x > 0, y, 1.0)

    run, _ = compiled(fn, dynamic=True)
    for m, n in (first, (4, 16), (16, 16), (20, 4), (4, 4)):
        x, y = torch.randn(m), torch.randn(n)
        compare(run(x, y), fn(x, y))
