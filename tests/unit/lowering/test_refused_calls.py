"""Shapes, values and mixed types that eager mode refuses are refused, with eager mode's own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import check, compiled
from torch import Tensor
from torch.nn import functional as F

ROWS = torch.tensor([0, 1])
LABELS = torch.tensor([0, 1, 2])

CALLS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "index_add": (lambda x, s: x.index_add(0, ROWS, s), (3, 2), (2,)),
    "index_add of one": (lambda x, s: x.index_add(0, ROWS, s), (3, 2), (2, 1)),
    "index_add of too many": (lambda x, s: x.index_add(0, ROWS, s), (3, 2), (3, 2)),
    "index_reduce": (lambda x, s: x.index_reduce(0, ROWS, s, "amax"), (3, 2), (2,)),
    "index_put": (lambda x, s: x.index_put((ROWS,), s), (5, 5), (1, 2, 5)),
    "index_put of one": (lambda x, s: x.index_put((ROWS[:1],), s), (5, 5), (3, 5)),
    "bucketize": (torch.bucketize, (3, 2), (2, 2)),
    "select_scatter": (lambda x, s: x.select_scatter(s, 1, 2), (5, 1, 5), (5, 5)),
    "masked_scatter": (lambda x, s: x.masked_scatter((x > 0).byte(), s), (3,), (3,)),
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 0, 0, 2), (3, 3), (2, 1)),
    "diagonal_scatter": (lambda x, s: x.diagonal_scatter(s), (3, 3), (1,)),
    "put": (lambda x, s: x.put(ROWS, s), (5,), (1,)),
    "cummin": (lambda x, s: x.cummin(7).values + s, (), (1,)),
    "adaptive_avg_pool2d": (lambda x, s: F.adaptive_avg_pool2d(x, 2) + s, (1, 2, 0, 4), (1,)),
    "as_strided of an input": (lambda x, s: x.as_strided((10,), (1,)) + s, (5,), (1,)),
    "as_strided of a result": (lambda x, s: (x * s).as_strided((2,), (1,), 4) * 2, (5,), (1,)),
    "softmax": (lambda x, s: torch.softmax(x, 100) + s, (), (1,)),
    "index_select of another dimension": (lambda x, s: x.index_select(1, ROWS[:1]) + s, (), (1,)),
    "index_select of one number, twice": (lambda x, s: x.index_select(0, ROWS) + s, (), (1,)),
    "index_select of a second number": (lambda x, s: x.index_select(0, ROWS[1:]) + s, (), (1,)),
    "index_reduce of another dimension": (lambda x, s: x.index_reduce(1, ROWS[0], s, "amax"), (), ()),
    "gather of a second number": (lambda x, s: x.gather(0, ROWS[1:]) + s, (), (1,)),
    "scatter of a second number": (lambda x, s: x.scatter(-1, ROWS[1:], s), (), (1,)),
    "scatter_add of a second number": (lambda x, s: x.scatter_add(0, ROWS[1:], s), (), (1,)),
    "scatter_reduce of a second number": (lambda x, s: x.scatter_reduce(0, ROWS[1:], s, "amax"), (), (1,)),
    "group norm of a bias of one": (
        lambda x, b: torch.native_group_norm(x, None, b, 2, 6, 4, 3, 1e-5)[0],
        (2, 6, 4),
        (1,),
    ),
    "group norm of a weight of more dimensions": (
        lambda x, w: torch.native_group_norm(x, w, None, 2, 6, 4, 3, 1e-5)[0],
        (2, 6, 4),
        (1, 6, 1),
    ),
    "batch norm of a column of means": (lambda x, m: F.batch_norm(x, m, m), (2, 6, 4), (6, 1)),
    "cross entropy of one weight": (
        lambda x, w: F.cross_entropy(x, torch.zeros(2, 4, dtype=torch.int64), w),
        (2, 6, 4),
        (1,),
    ),
    "unfold": (lambda x, s: F.unfold(x, 2, 1, (-1, 1)) + s.sum(), (1, 2, 5, 5), (1,)),
}


def eager_error(fn: Callable[..., Any], *args: Tensor) -> type[Exception]:
    with pytest.raises((RuntimeError, IndexError)) as eager:
        fn(*args)
    return eager.type


@pytest.mark.quick(9)
@pytest.mark.parametrize("name", CALLS)
def test_shapes_and_values_that_eager_mode_refuses(name: str) -> None:
    fn, shape, other = CALLS[name]
    args = torch.ones(shape), torch.ones(other)
    expected = eager_error(fn, *args)
    with pytest.raises(expected):
        compiled(fn)[0](*args)


MIXED: dict[str, tuple[Callable[[Tensor, Tensor], Any], tuple[int, ...], tuple[int, ...]]] = {
    "mv": (torch.mv, (3, 4), (4,)),
    "dot": (torch.dot, (4,), (4,)),
    "cross": (torch.linalg.cross, (3,), (3,)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (4,), w), (3, 4), (4,)),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), (3, 4), (4,)),
    "batch_norm": (lambda x, w: F.batch_norm(x, torch.ones(4), torch.ones(4), w), (3, 4), (4,)),
    "batch_norm of a batch": (lambda x, w: F.batch_norm(x, None, None, w, training=True), (3, 4), (4,)),
    "prelu": (F.prelu, (3, 4), (4,)),
    "binary_cross_entropy": (F.binary_cross_entropy, (3, 4), (3, 4)),
    "nll_loss": (lambda x, w: F.nll_loss(x, LABELS, w), (3, 4), (4,)),
    "index_put": (lambda x, s: x.index_put((ROWS,), s), (3,), (2,)),
    "index_copy": (lambda x, s: x.index_copy(0, ROWS, s), (3,), (2,)),
    "put": (lambda x, s: x.put(ROWS, s), (3,), (2,)),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_mixed_types_that_eager_mode_refuses(name: str, dtype: torch.dtype) -> None:
    """A weight that nobody cast is a mistake in the model, which compiling must not hide."""
    fn, shape, other = MIXED[name]
    args = torch.ones(shape), torch.ones(other, dtype=dtype)
    expected = eager_error(fn, *args)
    with pytest.raises(expected):
        compiled(fn)[0](*args)


@pytest.mark.quick(1)
@pytest.mark.parametrize("index", [ROWS[0], ROWS[:1]], ids=["number", "row"])
@pytest.mark.parametrize("dim", [0, -1])
def test_one_number_counts_as_a_row_of_one(dim: int, index: Tensor) -> None:
    check(lambda x: x.index_select(dim, index) + 1, torch.tensor(2.0))
    check(lambda x: x.gather(dim, index) + 1, torch.tensor(2.0))
    check(lambda x: x.scatter_add(dim, index, torch.full_like(index, 3.0, dtype=x.dtype)), torch.tensor(2.0))
    check(lambda x: torch.softmax(x, dim) + x, torch.tensor(2.0))


STRIDED: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x.as_strided((x.shape[0] + 1, 4), (4, 1)) + 1,
    "offset": lambda x: x.as_strided((x.shape[0], 4), (4, 1), x.shape[0]) + 1,
    "stride": lambda x: x.as_strided((2, x.shape[1]), (x.numel(), 1)) * 2,
    "of a result": lambda x: (x * 2).as_strided((x.shape[0] + 1, 4), (4, 1)) + 1,
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", STRIDED)
def test_strides_beyond_memory_of_a_varying_size(name: str) -> None:
    """What cannot be known of sizes that vary is looked at in each call."""
    fn = STRIDED[name]
    run, _ = compiled(fn, dynamic=True)
    with pytest.raises(RuntimeError):
        run(torch.randn(4, 4))
    longer = torch.randn(8, 4)[:4] if name != "of a result" else torch.randn(2, 8)
    torch.testing.assert_close(run(longer), fn(longer))


def test_what_is_refused_raises_where_nobody_reads_it() -> None:
    """Of the two forms of a loss, the labels choose one for every row; eager mode computes both."""
    x, y = (torch.randn(3, 4, dtype=torch.complex64) for _ in range(2))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cosine_embedding_loss(x, y, torch.ones(3))

    expected = eager_error(loss, x, y)
    with pytest.raises(expected):
        compiled(loss)[0](x, y)


def test_memory_that_is_behind_a_slice_is_read() -> None:
    rows = torch.rand(20)
    run, _ = compiled(lambda x: x.as_strided((10,), (1,)) * 2)
    assert torch.equal(run(rows[:5]), rows[:10] * 2)
    check(lambda x: (x * 2)[:5].as_strided((10,), (2,)) + 1, rows)


@pytest.mark.parametrize("begin", [1, 4])
def test_memory_that_is_before_a_slice_is_read(begin: int) -> None:
    run, _ = compiled(lambda x: (x.as_strided((3, 4), (2, 1), begin) * 2, x + 1))
    rows = torch.rand(20)
    assert torch.equal(run(rows[4:])[0], rows.as_strided((3, 4), (2, 1), begin) * 2)


def test_what_is_written_before_a_slice_does_not_change_its_other_elements() -> None:
    def write(x: Tensor) -> Tensor:
        x.as_strided((4,), (3,), 1).add_(1)
        return x * 2

    rows, expected = torch.arange(20.0), torch.arange(20.0)
    write(expected[3:])
    torch.compile(write, backend="polyfuse")(rows[3:])
    assert torch.equal(rows[3:], expected[3:])


def test_mixed_types_that_eager_mode_takes() -> None:
    x, weight = torch.randn(3, 4).bfloat16(), torch.rand(4)
    for fn in (
        lambda x, w: F.layer_norm(x, (4,), w, w),
        lambda x, w: F.group_norm(x, 2, w, w),
        lambda x, w: F.batch_norm(x, w, w, w, w),
    ):
        run, record = compiled(fn)
        torch.testing.assert_close(run(x, weight), fn(x, weight))
        assert not record.report.fallbacks


@pytest.mark.parametrize("loss", [F.huber_loss, F.soft_margin_loss])
def test_losses_of_mixed_types_have_the_type_of_eager_mode(loss: Callable[..., Tensor]) -> None:
    check(loss, torch.rand(3).bfloat16(), torch.rand(3), native=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_bounds_of_logit_are_rounded_as_in_eager_mode(dtype: torch.dtype) -> None:
    """An `eps` below what the type has before 1 leaves the infinity at 1."""
    x = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=dtype)
    run, _ = compiled(lambda x: torch.logit(x, 1e-6))
    torch.testing.assert_close(run(x), torch.logit(x, 1e-6))
    assert run(x)[-1].isinf()
