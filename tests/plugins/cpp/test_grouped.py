"""Launches of several kernels as one, in C++."""

from __future__ import annotations

import torch

from polyfuse.compiler.reports.report import last_reports, reset_reports

OPTIONS = {"strict": True, "backends": ["cpp"], "verify": 2, "check": "all"}


def launches() -> list[int]:
    """How many kernels each compiled graph launches."""
    return [report.kernels for report in last_reports()]


def test_a_list_of_any_sizes_is_one_launch() -> None:
    def f(xs):
        ys = torch._foreach_mul(torch._foreach_add(xs, 1.0), 2.0)
        return [*ys, ys[0].relu(), ys[1].sum(-1)]

    reset_reports()
    xs = [torch.randn(n, 3) for n in (4, 9, 1, 4, 17)]
    compiled = torch.compile(f, backend="polyfuse", options={**OPTIONS, "horizontal_fusion": True})
    for got, wanted in zip(compiled(xs), f(xs), strict=True):
        torch.testing.assert_close(got, wanted)
    assert launches() == [1]


def test_an_optimizer_updates_parameters_of_all_sizes_in_few_launches() -> None:
    torch.manual_seed(0)
    sizes = [*range(1, 7), 5, 5]
    mine, theirs = ([torch.ones(n, n + 1, requires_grad=True) for n in sizes] for _ in range(2))
    for a, b in zip(mine, theirs, strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    ours, eager = (torch.optim.AdamW(each, foreach=True) for each in (mine, theirs))
    reset_reports()
    step = torch.compile(ours.step, backend="polyfuse", options=OPTIONS)
    for _ in range(2):
        step()
        eager.step()
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert max(launches()) <= 2  # the steps, then the parameters


def test_sizes_that_vary() -> None:
    def f(x, y):
        return x + 1, y * 2

    reset_reports()
    options = {**OPTIONS, "horizontal_fusion": True}
    compiled = torch.compile(f, backend="polyfuse", options=options, dynamic=True)
    for n, k in ((4, 7), (9, 2)):
        x, y = torch.randn(n), torch.randn(k, 3)
        for got, wanted in zip(compiled(x, y), f(x, y), strict=True):
            torch.testing.assert_close(got, wanted)
    assert launches() == [1]


def test_halves_that_one_part_only_moves() -> None:
    """That part takes them as the integers of their bits, the group as what they are (seed 44000026)."""

    def f(x, y):
        return x[1:], x[1:].clone(), y.tanh()

    reset_reports()
    x, y = torch.randn(5, 3).bfloat16(), torch.randn(7).bfloat16()
    compiled = torch.compile(f, backend="polyfuse", options={**OPTIONS, "horizontal_fusion": True})
    for got, wanted in zip(compiled(x, y), f(x, y), strict=True):
        torch.testing.assert_close(got, wanted)
    assert launches() == [1]
