"""Sums joined to rows, divided scans, quotients without divisions and lists, on a real device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polyfuse.compiler.reports.report import last_reports

pytestmark = pytest.mark.gpu
SEED = 7

Function = Callable[..., Any]


def compiled(function: Function) -> Function:
    return torch.compile(function, backend="polyfuse", dynamic=False)


def reasons() -> set[str]:
    return {d.reason for report in last_reports() for d in report.decisions}


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


NORMS: dict[str, tuple[Function, int]] = {
    "rms norm": (rms_norm, 1),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), 2),
    "residual": (lambda x, w: F.gelu(x) + rms_norm(x, w), 1),
}


@pytest.mark.parametrize("shape", [(4096, 4096), (8, 1000, 768), (5003, 1000), (2048, 8192)], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_weights(name: str, shape: tuple[int, ...]) -> None:
    fn, count = NORMS[name]
    args = [torch.randn(s, device="cuda") for s in (shape, *[shape[-1:]] * count)]
    weight = torch.randn(shape, device="cuda")
    mine = [a.clone().requires_grad_() for a in args]
    exact = [a.double().requires_grad_() for a in args]
    found = torch.autograd.grad(compiled(fn)(*mine), mine, weight)
    wanted = torch.autograd.grad(fn(*exact), exact, weight.double())
    for got, true in zip(found, wanted, strict=True):
        assert ((got - true).abs().max() / true.abs().max()).item() < 1e-5
    assert "columns are added up in the kernel that reads the rows" in reasons()


@pytest.mark.parametrize("shape", [(1, 1 << 22), (4, 1 << 20), (1 << 20, 2), (1, 1000003)], ids=str)
def test_long_scans(shape: tuple[int, int]) -> None:
    dim = int(shape[1] > shape[0])
    x = torch.randint(-9, 9, shape, device="cuda")
    assert torch.equal(compiled(lambda x: (x * 2).cumsum(dim))(x), (x * 2).cumsum(dim))
    y = torch.rand(shape, device="cuda")
    torch.testing.assert_close(
        compiled(lambda y: y.cumsum(dim))(y), y.double().cumsum(dim).float(), rtol=1e-4, atol=1e-2
    )


@pytest.mark.parametrize(
    "length", [1, 2, 32767, 32768, 32769, 65537, (1 << 20) + 1, 256 * 4096 + 3, 10_000_019]
)
def test_chunks_that_look_back(length: int) -> None:
    whole = torch.randint(-9, 9, (length,), device="cuda")
    assert torch.equal(compiled(lambda x: x.cumsum(0) + 1)(whole), whole.cumsum(0) + 1)
    x = torch.rand(length, device="cuda") - 0.5
    run = compiled(lambda x: x.cumsum(0))
    found = run(x)
    torch.testing.assert_close(found, x.double().cumsum(0).float(), rtol=1e-4, atol=1e-2)
    assert all(torch.equal(run(x), found) for _ in range(3))
    if length < 1 << 21:
        # eager mode needs long for these
        for got, true in zip(compiled(lambda x: x.cummax(0))(x), x.cummax(0), strict=True):
            assert torch.equal(got, true)


SCANS: dict[str, Function] = {
    "products": lambda x: (1 + x / 1e4).cumprod(-1),
    "smallest": lambda x: x.cummin(-1),
    "logarithms": lambda x: x.logcumsumexp(-1),
    "halves": lambda x: x.to(torch.bfloat16).float().cumsum(-1).to(torch.bfloat16),
    "wide": lambda x: x.double().cumsum(-1),
    "of another scan": lambda x: (x.nan_to_num() * 8).to(torch.int64).cumsum(-1).cummax(-1),
    "with what is around it": lambda x: torch.where(x > 0, x.cumsum(-1) * x, x.var(-1, keepdim=True)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_kinds_of_chunks_that_look_back(name: str, dynamic: bool) -> None:
    run = torch.compile(SCANS[name], backend="polyfuse", dynamic=dynamic)
    for rows, length in ((3, 100_003), (5, 300_000)):
        x = torch.randn(rows, length, device="cuda")
        x[1, 70_000] = float("nan")
        near = 2e-2 if name == "halves" else 1e-4
        for got, true in zip(
            torch.utils._pytree.tree_leaves(run(x)),
            torch.utils._pytree.tree_leaves(SCANS[name](x)),
            strict=True,
        ):
            torch.testing.assert_close(got, true, rtol=near, atol=1e-2, equal_nan=True)


def test_chunks_that_look_back_in_a_recorded_graph() -> None:
    run = torch.compile(lambda x: (x * 2).cumsum(-1) - x, backend="polyfuse", mode="reduce-overhead")
    for _ in range(5):
        x = torch.randint(-9, 9, (2, 1 << 20), device="cuda")
        assert torch.equal(run(x), (x * 2).cumsum(-1) - x)


def test_quotients_are_as_exact_as_divisions() -> None:
    x = torch.randn(1 << 20, device="cuda") * 10 ** (torch.rand(1 << 20, device="cuda") * 60 - 30)
    rows = torch.randn(1024, 1, device="cuda") * 10 ** (torch.rand(1024, 1, device="cuda") * 30 - 15)
    for got, wanted in (
        (compiled(lambda x: x / 9.0)(x), x / 9.0),
        (compiled(lambda x, y: x.view(1024, -1) / y)(x, rows), x.view(1024, -1) / rows),
    ):
        normal = wanted.abs() > 1e-36
        torch.testing.assert_close(got[normal], wanted[normal], rtol=1.2e-7, atol=0)


def test_quotients_of_edges() -> None:
    e = torch.tensor([0.0, -0.0, 1e-45, 3e38, float("inf"), float("nan"), -1.0, 2.0], device="cuda")
    fn: Function = lambda a, b: a[None, :].expand(8, 8) / b[:, None]  # noqa: E731
    found, wanted = compiled(fn)(e, e), fn(e, e)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(found[wanted == 0]), torch.signbit(wanted[wanted == 0]))


def test_losses_of_edges() -> None:
    x = torch.randn(512, 50257, device="cuda")
    x[3, 7], x[4], x[5, 1], x[6, 2] = float("-inf"), float("-inf"), float("inf"), float("nan")
    fn: Function = lambda x: (x.log_softmax(-1), x.logsumexp(-1))  # noqa: E731
    for got, wanted in zip(compiled(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("args", [(3, 2, 1), (2, 2), (5, 3, 2, True, False)], ids=str)
def test_gradients_of_averages(args: tuple[Any, ...]) -> None:
    x = torch.randn(4, 8, 112, 112, device="cuda")
    results = []
    for function in (compiled(lambda x: F.avg_pool2d(x, *args)), lambda x: F.avg_pool2d(x, *args)):
        given = x.clone().requires_grad_()
        results.append(torch.autograd.grad(function(given).square().sum(), given)[0])
    torch.testing.assert_close(*results)


def test_kernels_that_share_no_data() -> None:
    xs = [torch.randn(3000, 700, device="cuda") for _ in range(9)]
    fn: Function = lambda *xs: [x.exp() + 1 for x in xs] + [torch.cat([xs[0] * 2, xs[1].relu()], -1)]  # noqa: E731
    for got, wanted in zip(compiled(fn)(*xs), fn(*xs), strict=True):
        torch.testing.assert_close(got, wanted)
