"""What the host does beside launching kernels: reads numbers, copies, writes results into parts of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lowered import check, compiled


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", [torch.tensor(5), torch.tensor(True), torch.tensor([[3]])])
def test_numbers_read_from_tensors(number: torch.Tensor) -> None:
    def function(n: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        count = int(n.item())
        torch._check(count >= 0)
        torch._check(count < 100)
        return torch.zeros(count + 1).sum() + x * count + torch.arange(count + 2).sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(function, number, torch.randn(3), native=False)


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("divisor", [3, 2.5, -1.75, float("inf")])
def test_remainders_of_numbers_read_from_tensors(divisor: float) -> None:
    """torch's pass over such arithmetic knows no remainders, and takes those by infinity for zero."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        number = x.sum().item()
        return x * (number % divisor), x + number % divisor * 2

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend="polyfuse", fullgraph=True, options={"strict": True})
        for values in (torch.randn(7), -torch.randn(7).abs(), torch.zeros(7), torch.randn(7).double() * 50):
            torch.testing.assert_close(run(values), function(values), equal_nan=True)
        for whole in (torch.arange(-9, 2), torch.arange(12)):
            torch.testing.assert_close(run(whole), function(whole), equal_nan=True)
        wanted, found = torch.randn(5).requires_grad_(), torch.randn(5).requires_grad_()
        found.data.copy_(wanted.data)
        sum(part.sum() for part in function(wanted)).backward()
        sum(part.sum() for part in run(found)).backward()
        torch.testing.assert_close(found.grad, wanted.grad, equal_nan=True)


def divided_by_a_number(x: torch.Tensor, n: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    count, by = n.item(), d.item()
    torch._check(count >= 0)
    torch._check(by >= 1)
    torch._check(count % by == 0)
    return torch.ones(count).view(by, -1).cumsum(-1) * 2 + x.sum()


def divided_by_a_size(x: torch.Tensor, n: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    count = n.item()
    torch._check(count >= 0)
    torch._check(count % x.shape[0] == 0)
    return torch.ones(count).view(-1, x.shape[0]) + x * d


def divided_rows(x: torch.Tensor, n: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    found, by = x.nonzero(), d.item()
    torch._check(by >= 1)
    torch._check(found.shape[0] % by == 0)
    return found.view(by, -1) * 2 + n


@pytest.mark.quick(1)
@pytest.mark.parametrize("function", [divided_by_a_number, divided_by_a_size, divided_rows])
def test_divisors_that_only_data_or_sizes_give(function: Callable[..., torch.Tensor]) -> None:
    """Exact divisions by them are sizes like any other; a remainder raises."""
    known = torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
    with known:
        run = torch.compile(function, backend="polyfuse", dynamic=True, options={"strict": True})
        for count, by in ((12, 3), (24, 4)):
            x = torch.arange(1.0, 13.0)
            args = (x, torch.tensor(count), torch.tensor(by))
            torch.testing.assert_close(run(*args), function(*args))
        with pytest.raises(RuntimeError):
            run(x, torch.tensor(13), torch.tensor(5))


@pytest.mark.quick(1)
@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_copies_into_other_types_and_layouts(target: torch.dtype) -> None:
    """Written where the target lies, converted, broadcast, and with the target's strides."""

    def function(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        a.copy_(x.t())
        a[1:, ::2].copy_(x[0, :1])
        return a.t() + a.new_empty(a.shape).copy_(x[:, 0]).t()

    for stride in ((4, 1), (1, 6), (8, 2)):
        a = torch.empty_strided((6, 4), stride, dtype=target).fill_(1)
        check(function, a, 10 * torch.randn(4, 6), numerics="eager")


@pytest.mark.quick(1)
@pytest.mark.parametrize("accumulate", [False, True])
def test_index_assignment_with_gaps_in_the_list(accumulate: bool) -> None:
    i, j = torch.tensor([0, 2, 2]), torch.tensor([1, 3, 3])
    values, rows = torch.tensor([1.0, 2.0, 2.0]), torch.randn(3, 5)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        put = torch.ops.aten.index_put.default
        return [
            put(x, [None, j[:1], i[:1]], values[:1], accumulate),
            put(x[0], [i, None], rows[:1], accumulate),
            put(x, [None, i], rows[:1].expand(3, 5), accumulate),
            put(x[:, :, 0], [i[:2], j[:2]], values[0], accumulate),
        ]

    check(function, torch.randn(3, 4, 5))


def test_the_result_of_a_library_call_goes_into_its_part_of_a_concatenation() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ y
        return torch.cat([product, y, x.exp()], 0), torch.stack([product, y], 1)

    check(function, torch.randn(4, 4), torch.randn(4, 4))


def test_numbers_that_operators_of_users_return() -> None:
    @torch.library.custom_op("polyfuse_test::positive", mutates_args=())
    def positive(x: torch.Tensor) -> int:
        return int((x > 0).sum())

    @positive.register_fake
    def _(x: torch.Tensor) -> int:
        return torch.library.get_ctx().new_dynamic_size()

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        n = positive(x)
        return x.new_ones(n) * 2, x * n

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for seed in range(2):
            torch.manual_seed(seed)
            check(fn, torch.randn(5, 3))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "row",
    [
        lambda x, i: x[i] * 2,
        lambda x, i: (x + 1)[i],
        lambda x, i: x[i][1:].exp() + x.t().select(1, i)[1:],
        lambda x, i: torch.mm(x[i].view(1, 5), x.t()),
    ],
)
def test_an_index_read_from_data(row: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    """It may count from the end, and is checked."""

    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return row(x, n.sum().item())

    x = torch.randn(8, 5)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run, record = compiled(function)
        for index in (3, -2, 7, -8):
            torch.testing.assert_close(run(x, torch.tensor([index])), row(x, index))
        assert not record.report.fallbacks
        for index in (8, -9):
            with pytest.raises(IndexError, match=rf"index {index} is out of bounds .* with size 8"):
                run(x, torch.tensor([index]))
