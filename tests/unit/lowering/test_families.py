"""Each family of operators against eager mode, on edge values and dtypes."""

from __future__ import annotations

import math

import pytest
import torch
from lowered import check

F = torch.nn.functional
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.5, math.inf, -math.inf, math.nan, 1e30, 1e-30])


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_unary_floats(dtype: torch.dtype) -> None:
    x = EDGES.to(dtype)

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.abs(x),
            torch.sign(x),
            torch.floor(x),
            torch.ceil(x),
            torch.trunc(x),
            torch.round(x),
            -x,
            torch.isnan(x),
            torch.isinf(x),
            torch.signbit(x),
            torch.sqrt(x),
            torch.sigmoid(x),
            torch.relu(x),
            torch.clamp(x, -1, 2),
            torch.logical_not(x),
            torch.reciprocal(x),
            torch.tanh(x),
        ]

    check(fn, x, numerics="eager")


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
def test_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 3, 100, 127, 5]).to(dtype)
    y = torch.tensor([3, 2, 7, 1, 2, 127, 4]).to(dtype)

    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        found = [
            x + y,
            x * y,
            x / y,
            x > y,
            x == y,
            torch.maximum(x, y),
            torch.where(x > 1, x, y),
            x & y,
            x | y,
            x ^ y,
            ~x,
            x.float(),
            x.bool(),
            x + 1.5,
            x > 1.5,
            torch.exp(x),
        ]
        if x.dtype is not torch.bool:
            found += [
                x - y,
                x // y,
                x % y,
                torch.fmod(x, y),
                -x,
                torch.abs(x),
                torch.sign(x),
                x**3,
                torch.div(x, y, rounding_mode="trunc"),
            ]
        return found

    check(fn, x, y)


def test_promotion() -> None:
    def fn(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> list[torch.Tensor]:
        return [
            a + b,
            a * d,
            b + d,
            c + d,
            b > c,
            a == c,
            b / 3,
            c * 0.1,
            a + 1,
            torch.add(b, c, alpha=2),
            d + True,
        ]

    check(
        fn,
        torch.tensor([True, False]),
        torch.tensor([3, -4], dtype=torch.int32),
        torch.tensor([0.1, 7.0], dtype=torch.bfloat16),
        torch.tensor(2.5, dtype=torch.float64),
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reductions(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 7).to(dtype)

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.sum(),
            x.sum(1),
            x.sum((0, 2), keepdim=True),
            x.mean(-1),
            x.amax(1),
            x.amin((0, 1)),
            x.max(),
            x.argmax(),
            x.argmax(1),
            x.argmin(2, keepdim=True),
            *x.max(1),
            *x.min(0),
            x.prod(1),
            (x > 0).any(1),
            (x > 0).all(2),
            (x > 0).sum(),
            x.var(1),
            x.std(2),
            torch.var_mean(x, (0, 2))[1],
            x.logsumexp(1),
            x.norm(),
            x.norm(1, dim=1),
            x.softmax(1),
            # eager mode rounds within it, so that numbers near zero are far off
            *([x.log_softmax(-1)] if dtype is torch.float32 else []),
            torch.count_nonzero(x, 1),
            x.sum(1, dtype=torch.float64),
        ]

    check(fn, x, numerics="eager")


def test_reductions_with_nan_ties_and_single_rows() -> None:
    x = torch.tensor([[1.0, math.nan, 3.0, math.nan], [2.0, 2.0, 1.0, 2.0]])

    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.amax(1),
            x.argmax(1),
            x.argmin(1),
            *x.max(1),
            x[:, :1].var(1, correction=0),
            x[:, 1:2].sum(1),
            x[:, :1].softmax(1),
            x[:, :1].argmax(1),
            x[:0].sum(),
            x[:, :0].sum(1),
            x[:, :0].mean(1),
            x[:0].amax(1),
        ]

    check(fn, x)


def test_large_variance_is_one_pass() -> None:
    record = check(lambda x: x.var(1), torch.randn(2, 20000) + 3)
    assert [n.kind for n in record.graph.nodes if hasattr(n, "kind")] == ["welford"]


def test_views() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [
            y.t() + 1,
            y[1:, ::2] + 1,
            y.view(2, 3, 8).permute(2, 0, 1).reshape(8, 6) - 1,
            y.flip(0, 1),
            y.unsqueeze(1).expand(6, 3, 8) * 2,
            y[2] + 1,
            y[:, -1] * 3,
            y.diagonal(1) * 2,
            y.repeat(2, 3),
            y.unfold(1, 3, 2) + 0,
            torch.roll(y, 3, 1),
            y.as_strided((2, 2), (3, 1), 4) + 1,
            *y.chunk(4, 1),
            torch.stack([y, y + 1], 1),
            y.view(torch.int32) + 1,
            y.reshape(-1)[5:11].view(2, 3) + 1,
            y.narrow(1, 2, 3),
        ]

    check(fn, torch.randn(6, 8))


def test_views_of_inputs_and_results() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        z = x.t()[1:]
        w = torch.relu(y).expand(4, 3)
        return [z + 1, z @ x, w, w.clone(), z.contiguous(), y.new_zeros(2, 2), (x + 1).t(), z.reshape(-1) * 2]

    check(fn, torch.randn(3, 5)[:, 1:], torch.randn(3))


def test_joining_and_padding() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.cat([x, y], 1),
            torch.cat([x, x + 1, y * 2], -1) * 2,
            torch.cat([x.exp()] * 6, 0),
            F.pad(x, (1, 2)),
            F.pad(x, (1, -2, 0, 3), value=7.0) * 2,
            F.pad(x[None], (2, 1, 1, 0), mode="reflect"),
            F.pad(x[None], (2, 1), mode="replicate"),
            torch.cat([x.new_zeros(0), x], 0),
            torch.cat([x.sin(), y.cos()], 1).sum(1),
        ]

    check(fn, torch.randn(4, 5), torch.randn(4, 3))


def test_indexing() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        return [
            x[i],
            x[:, j],
            y[i, j],
            y[:, i, :][..., j],
            x[i[:, None], :, j],
            y.gather(1, j[:, None, None].expand(3, 2, 5) % 4),
            y.index_select(2, j),
            torch.take_along_dim(y, y.argmax(1, keepdim=True), 1),
            x[-1],
            x[torch.arange(2), 1:3],
            y.masked_fill(b, 7.0),
            torch.where(b, y, 0.0),
        ]

    check(
        fn,
        torch.randn(3, 4, 5),
        torch.tensor([0, -1, 1]),
        torch.tensor([2, 3, -4]) % 4,
        torch.randn(3, 4, 5) > 0,
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_scattering(dtype: torch.dtype) -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        a = x.clone()
        a[i[:, 0]] = 1
        b = x.clone()
        b[x > 0] = 3
        return [
            a,
            b,
            x.scatter(1, i, v),
            x.scatter(1, i, 2),
            x.scatter_add(1, i, v),
            x.index_add(0, i[:, 0], v.new_ones(3, 6)),
            x.scatter_reduce(1, i, v, "amax"),
            x.scatter_reduce(1, i, v, "sum", include_self=False),
            x.scatter_reduce(1, i, v, "mean"),
            x.scatter_reduce(1, i, v, "prod", include_self=False),
            x.scatter_reduce(0, i % 4, v, "amin", include_self=False),
            x.index_put((i[:, 0],), v.new_ones(3, 6), accumulate=True),
            x.select_scatter(v[0, 0].expand(4), 1, 2),
            x.slice_scatter(v, 0, 1),
        ]

    x = torch.randint(-3, 4, (4, 6)).to(dtype)
    check(
        fn,
        x,
        torch.tensor([[0, 1, 2], [3, 2, 1], [1, 4, 5]]) % torch.tensor([4, 6, 6]),
        torch.randint(-3, 4, (3, 6)).to(dtype),
        numerics="eager",
    )


def test_scans() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            x.cumsum(1),
            (x + 1).cumsum(0),
            x.cumprod(1),
            *x.cummax(1),
            *x.cummin(0),
            x.logcumsumexp(1),
            (x > 0).cumsum(0),
            x.bfloat16().cumsum(1),
        ]

    check(fn, torch.randn(4, 6), numerics="eager")


@pytest.mark.quick(1)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pooling(layout: torch.memory_format) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        y = torch.relu(x)
        return [
            F.max_pool2d(y, 3, 2, 1),
            F.avg_pool2d(y, 3, 2, 1),
            F.avg_pool2d(y, 2, ceil_mode=True, count_include_pad=False, padding=1),
            F.adaptive_avg_pool2d(y, 1),
            F.adaptive_avg_pool2d(y, (3, 2)),
            F.adaptive_avg_pool2d(y, (5, 7)),
            *F.max_pool2d(y, 2, return_indices=True),
            F.avg_pool2d(y, 7, 1, 3),
            F.max_pool2d(y, 7, 2, 3),
            F.max_pool2d(y, 3, 1, 1, dilation=1, ceil_mode=True),
            F.avg_pool1d(y[0], 3),
        ]

    check(fn, torch.randn(2, 3, 9, 10).to(memory_format=layout), layout=False)


def test_pooling_backward() -> None:
    x = torch.randn(2, 3, 9, 10)

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        y = (
            F.max_pool2d(x, 3, 2, 1).sum() * 2
            + F.avg_pool2d(x, 3, 2, 1).square().sum()
            + F.adaptive_avg_pool2d(x, (3, 5)).sin().sum()
        )
        return y + F.avg_pool2d(x, 2, ceil_mode=True).cos().sum()

    from lowered import compiled

    run, record = compiled(
        lambda x: (
            F.max_pool2d(x, 3, 2, 1).sum() * 2
            + F.avg_pool2d(x, 3, 2, 1).square().sum()
            + F.adaptive_avg_pool2d(x, (3, 5)).sin().sum()
        )
    )
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    run(a).backward()
    (
        F.max_pool2d(b, 3, 2, 1).sum() * 2
        + F.avg_pool2d(b, 3, 2, 1).square().sum()
        + F.adaptive_avg_pool2d(b, (3, 5)).sin().sum()
    ).backward()
    torch.testing.assert_close(a.grad, b.grad)
    assert not record.report.fallbacks, record.report.text()


def test_creation() -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.arange(7),
            torch.arange(1, 8, 2) * 2,
            torch.arange(0, 1, 0.3),
            torch.ones_like(x),
            torch.full((2, 3), 7.5),
            torch.zeros(3, dtype=torch.int32),
            torch.eye(3),
            torch.linspace(0, 1, 5),
            torch.tril(x),
            torch.triu(x, 1),
            torch.tensor([1, 2, 3]) + 1,
            x + torch.tensor(2.0),
            torch.full((2,), 0.1, dtype=torch.bfloat16),
        ]

    check(fn, torch.randn(4, 4))


def test_empty_results() -> None:
    check(
        lambda x: [x[:0] + 1, x[:, :0] @ x[:0], torch.cat([x[:0], x]), (x[:0] * 2).sum(0)], torch.randn(3, 3)
    )


def test_scattering_nothing() -> None:
    none = torch.zeros(2, 0, dtype=torch.long)

    def fn(x: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        return [
            (x + 1).scatter(0, none, 2.0),
            (x + 1).scatter_add(0, none, source),
            (x + 1).scatter_reduce(0, none, source, "mean", include_self=False),
        ]

    check(fn, torch.randn(5), torch.randn(2, 0))


@pytest.mark.parametrize("rows", [64, 4])
def test_what_goes_into_a_much_larger_tensor_is_stored_before_it(rows: int) -> None:
    def f(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.index_put((i,), a + b, accumulate=True)

    i = torch.randint(0, rows, (4,))
    args = (torch.zeros(rows, 8), torch.randn(4, 8), torch.randn(4, 8), i)
    record = check(f, *args)
    stored = "goes into a much larger tensor" in record.report.realized.values()
    assert stored is (rows == 64)
