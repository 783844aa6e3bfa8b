"""Moments of groups of columns: from those of each column, where loops over these run along memory."""

from __future__ import annotations

import pytest
import torch
from lowered import check, compiled

from polyfuse.plugin import TargetInfo

COLUMNS = TargetInfo(column_bytes=1 << 16)


def grouped(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.group_norm(x, 2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_groups_of_channels_that_are_last(dynamic: bool) -> None:
    x = torch.randn(2, 6, 9, 11).contiguous(memory_format=torch.channels_last)
    rows, single = x.contiguous(), x[:, :2].contiguous(memory_format=torch.channels_last)
    made = [
        check(grouped, y, dynamic=dynamic, target=COLUMNS).kinds().count("Reduction")
        for y in (x, rows, single)
    ]
    # rows that are contiguous, and groups of one channel, are reduced at once
    assert made == ([4, 1, 1] if dynamic else [6, 3, 3])


def test_a_large_mean_cancels_out() -> None:
    """Where eager mode's sum of squares has lost four digits."""
    x = (torch.randn(2, 6, 9, 11) + 100).contiguous(memory_format=torch.channels_last)
    fn, _ = compiled(grouped, target=COLUMNS)
    torch.testing.assert_close(fn(x), grouped(x.double()).float(), rtol=1e-4, atol=1e-4)


def test_variances_of_blocks() -> None:
    x = torch.randn(70, 4, 5) * torch.arange(1, 21).view(4, 5)
    for correction in (0, 1):
        check(lambda x, c=correction: x.var((0, 2), correction=c), x, target=COLUMNS)
    check(lambda x: torch.var_mean(x.bfloat16(), (0, 2), keepdim=True), x, target=COLUMNS)
    record = check(lambda x: x.std((0, 2)), x, target=COLUMNS)
    assert record.kinds().count("Reduction") == 6


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_numbers_have_no_variance(dtype: torch.dtype, dynamic: bool) -> None:
    """Sums of odd counts are rounded, and their mean is no more the number that all are."""

    def spread(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        variance, mean = torch.var_mean(x, -1)
        last = x.view(2, 3, -1).movedim(1, 2).contiguous().movedim(2, 1)
        return variance, x.std(-1), x.var(), x.t().contiguous().var(0), last.var((1, 2)), mean - x[:, 0]

    def norms(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        functional, batches = torch.nn.functional, x.view(2, 3, -1)
        by_rows = functional.layer_norm(x, x.shape[-1:])
        by_groups = functional.group_norm(batches, 1, eps=1e-30)
        return by_rows, by_groups, functional.batch_norm(batches, None, None, training=True)

    numbers = torch.randn(4, dtype=torch.float64) * torch.tensor([1e-9, 1, 1e4, 1e12])
    for length in (3, 777, 4097):
        for fn in (compiled(f, dynamic=dynamic, target=COLUMNS)[0] for f in (spread, norms)):
            for number in numbers.tolist():
                found = fn(torch.full((6, length), number, dtype=dtype))
                assert [torch.count_nonzero(y).item() for y in found] == [0] * len(found), (length, number)


def test_a_spread_of_one_unit_is_seen() -> None:
    """The mean is off by more than that, before it is corrected."""
    for length, number in ((1001, 1e4), (4096, 3.3), (777, -0.7)):
        x = torch.full((2, length), number)
        x[:, ::3] = torch.nextafter(x[:, ::3], torch.tensor(torch.inf))
        fn, _ = compiled(lambda x: x.var(-1))
        torch.testing.assert_close(fn(x), x.double().var(-1).float(), rtol=1e-2, atol=0)


def test_squares_that_are_infinite() -> None:
    """Numbers whose squares are none have an infinite variance, as in eager mode, not NaN."""
    x = torch.tensor([1e30, -1e30, 2e30, 3e30, 1e25]).repeat(2, 201)
    check(lambda x: x.var(-1), x)
    check(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), x)
    check(lambda x: x.var(-1), x / torch.tensor([[1.0], [0.0]]))


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "halide", "interpreter"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_variance_too_large_for_its_type_is_infinite(backend: str, dynamic: bool) -> None:
    """Also where lanes without numbers take part, from which nothing is as far as that."""
    torch._dynamo.reset()
    options = {"backends": (backend, "interpreter")}
    run = torch.compile(lambda x: torch.var_mean(x, -1), backend="polyfuse", dynamic=dynamic, options=options)
    for count in (3, 9, 70) if dynamic else (70,):
        x = torch.randn(2, count)
        x[0, 2], x[1, 0] = 2e38, -2e38
        torch.testing.assert_close(run(x), torch.var_mean(x, -1))
