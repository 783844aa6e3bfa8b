"""What eager mode refuses is refused here as well, with eager mode's own error."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowered import check, compiled

INDEX = torch.tensor([1, 1, 3])


def refused(fn: Callable[..., Any], *args: torch.Tensor) -> None:
    with pytest.raises((RuntimeError, IndexError)) as eager:
        fn(*args)
    run, _ = compiled(fn)
    with pytest.raises(eager.type, match=re.escape(str(eager.value).splitlines()[0])):
        run(*args)


@pytest.mark.parametrize("source", [torch.ones(3, dtype=torch.bool), torch.ones(3, dtype=torch.float64)])
def test_rows_of_another_type_are_not_added(source: torch.Tensor) -> None:
    refused(lambda x, i, s: x.index_add(0, i, s), torch.zeros(4), INDEX, source)


def test_rows_of_truth_values_are_added() -> None:
    x, source = torch.tensor([True, False, False, False]), torch.tensor([True, False, True])
    check(lambda x, i, s: x.index_add(0, i, s), x, INDEX, source, native=False)


def test_rows_are_added_in_any_dimension() -> None:
    x, source = torch.randn(2, 4), torch.randn(2, 3)
    check(lambda x, i, s: (x.index_add(-1, i, s), x.index_add(1, i, s, alpha=2.5)), x, INDEX, source)
    one, two, index = torch.tensor(4.0), torch.tensor(2.0), torch.tensor(0)
    check(lambda x, i, s: x.index_add(0, i, s), one, index, two)
    check(lambda x, i, s: x.index_add(1, i, s), x, index, source[:, :1])


EMPTY = torch.zeros(0)
ROWS = torch.tensor([0, 1])


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "put",
    [
        lambda x, i, s: x.scatter(0, i, s),
        lambda x, i, s: x.scatter(0, i, 1.0),
        lambda x, i, s: x.scatter_add(0, i, s),
        lambda x, i, s: x.scatter_reduce(0, i, s, "amax"),
        lambda x, i, s: x.index_put((i,), s),
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        lambda x, i, s: x.clone().index_put_((i,), s),
    ],
)
def test_nothing_is_put_into_an_empty_tensor(put: Callable[..., Any]) -> None:
    refused(put, EMPTY, ROWS, torch.ones(2))
    check(put, EMPTY, ROWS[:0], torch.ones(0))


def test_indices_of_an_empty_tensor_that_exist() -> None:
    check(lambda x, i: x.index_put((i,), torch.ones(())), torch.zeros(3, 0), ROWS, native=False)
    check(lambda x: x.index_put((x > 0,), torch.ones(())), EMPTY)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_maxima_of_integers_in_one_dimension(dtype: torch.dtype) -> None:
    run, record = compiled(lambda x: torch.max_pool1d(x, 2))
    with pytest.raises(NotImplementedError, match="not implemented for"):
        run(torch.ones(1, 2, 8).to(dtype))
    assert [f.reason for f in record.report.fallbacks] == ["eager mode refuses these arguments"]
    check(lambda x: torch.max_pool1d(x, 2), torch.randn(1, 2, 8))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8], ids=str)
def test_batch_norm_of_integers(dtype: torch.dtype) -> None:
    x, mean, variance = torch.ones(1, 2, 8).to(dtype), torch.zeros(2), torch.ones(2)
    refused(torch.nn.functional.batch_norm, x, mean, variance)


TOO_LARGE: list[tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = [
    (lambda x: x.clamp(max=200), torch.int8),
    (lambda x: F.hardtanh(x, -1, 300), torch.int8),
    (lambda x: x.clone().fill_(-300), torch.uint8),
    (lambda x: torch.full_like(x, 1 << 40), torch.int32),
    (lambda x: x.masked_fill(x > 0, 40000), torch.int16),
    (lambda x: torch.where(x > 0, x, 300), torch.int8),
    (lambda x: x.scatter(0, torch.tensor([0]), 300), torch.int8),
    (lambda x: x.new_full((2,), 1e6), torch.float16),
    (lambda x: x.clamp(max=1e6), torch.float16),
    (lambda x: x.clone().fill_(1e39), torch.bfloat16),
    (lambda x: x.clone().fill_(1e300), torch.float32),
    (lambda x: x.masked_fill(x > 2, -1e9), torch.float16),
    (lambda x: F.pad(x, (1, 2), value=70000.0), torch.float16),
    (lambda x: F.pad(x, (1, 2), value=-1), torch.uint8),
    (lambda x: F.threshold(x, 2, 300), torch.int8),
    (lambda x: torch.add(x, x, alpha=300), torch.int8),
    (lambda x: torch.sub(x, x, alpha=1e5), torch.float16),
    (lambda x: torch.addcmul(x, x, x, value=300), torch.uint8),
    (lambda x: torch.addmv(x, x.outer(x), x, beta=1 << 40), torch.int32),
    (lambda x: x.index_fill(0, torch.tensor([1]), 1e5), torch.int16),
    (lambda x: x.index_add(0, torch.tensor([1]), x[:1], alpha=300), torch.int8),
    (lambda x: F.leaky_relu(x, 1e39), torch.bfloat16),
    (lambda x: x**300, torch.int8),
    (lambda x: torch.linspace(0, 300, 4, dtype=x.dtype), torch.int8),
    (lambda x: torch.where(x > 2, x, 1e39), torch.float32),
]
FITTING: list[tuple[Callable[[torch.Tensor], torch.Tensor], torch.dtype]] = [
    (lambda x: x.clone().fill_(-1), torch.uint8),
    (lambda x: x.clamp(-1, 5), torch.uint8),
    (lambda x: x.clamp(-128, 127), torch.int8),
    (lambda x: x + 300, torch.int8),
    (lambda x: x > 300, torch.int8),
    (lambda x: x.masked_fill(x > 0, -math.inf), torch.float16),
    (lambda x: torch.full_like(x, torch.finfo(torch.bfloat16).min), torch.bfloat16),
    (lambda x: torch.where(x > 0, x, -1e9), torch.float16),
    (lambda x: torch.full_like(x, 7, dtype=torch.bool), torch.int8),
    (lambda x: torch.add(x, x, alpha=-100), torch.int8),
    (lambda x: F.pad(x, (1, 2), value=-math.inf), torch.bfloat16),
    (lambda x: torch.addcmul(x, x, x, value=65504.0), torch.float16),
]


@pytest.mark.quick(6)
@pytest.mark.parametrize("number", range(len(TOO_LARGE)))
def test_numbers_that_overflow_raise(number: int) -> None:
    function, dtype = TOO_LARGE[number]
    x = torch.arange(9).to(dtype)
    run, _ = compiled(function)
    for called in (function, run):
        with pytest.raises(RuntimeError, match="without overflow"):
            called(x)


@pytest.mark.quick(6)
@pytest.mark.parametrize("number", range(len(FITTING)))
def test_numbers_that_fit_are_computed_by_kernels(number: int) -> None:
    function, dtype = FITTING[number]
    x = torch.arange(9).to(dtype)
    run, record = compiled(function)
    torch.testing.assert_close(run(x), function(x))
    assert not record.report.fallbacks


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_numbers_counted_in_integers(dtype: torch.dtype) -> None:
    """Neither rounded to 24 bits, nor with steps that are none of the type."""
    end = 200 if dtype == torch.uint8 else 2**31 - 1
    for function in (
        lambda x: torch.linspace(0, end, 5, dtype=dtype) + x,
        lambda x: torch.arange(0.5, 6, 1.5, dtype=dtype) + x,
        lambda x: torch.addcmul(x, x, x, value=3.0),
    ):
        x = torch.tensor(1, dtype=dtype)
        run, _ = compiled(function)
        torch.testing.assert_close(run(x), function(x), rtol=0, atol=0)
