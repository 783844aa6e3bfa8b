"""Attention whose mask is computed from positions: called without it where it is the causal one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from polyfuse.compiler.reports.report import last_reports, reset_reports

BATCH, HEADS, WIDTH = 2, 3, 16

Mask = Callable[[Tensor], Tensor]


def by_comparison(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return at[None, :] <= at[:, None]


def by_distance(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return ((at[:, None] - at[None, :]) >= 0).expand(BATCH, 1, -1, -1)


def later_ones_hidden(x: Tensor) -> Tensor:
    at = torch.arange(5, x.shape[-2] + 5)
    return ~(at > at.view(-1, 1))


def added(x: Tensor) -> Tensor:
    return torch.where(by_comparison(x), 0.0, float("-inf"))


def of_one_sequence(x: Tensor) -> Tensor:
    """As `transformers` finds out whether several sequences are packed into one."""
    position = torch.arange(x.shape[-2]).unsqueeze(0)
    apart = torch.diff(position, prepend=position[:, :1] - 1, dim=-1)
    sequence = (apart != 1).cumsum(-1)
    first = torch.arange(1)[:, None, None, None]
    query = torch.arange(x.shape[-2])[None, None, :, None]
    key = torch.arange(x.shape[-2])[None, None, None, :]
    same = sequence[first, query] == sequence[first, key]
    seen = position.expand(1, -1)[first, key] <= position.expand(1, -1)[first, query]
    return torch.ones((), dtype=torch.bool) & same & seen


def in_a_wide_window(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return by_comparison(x) & (at[None, :] > at[:, None] - 100)


CAUSAL = [by_comparison, by_distance, later_ones_hidden, added, of_one_sequence]


def in_a_window(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return by_comparison(x) & (at[None, :] > at[:, None] - 4)


def without_itself(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return (at[None, :] < at[:, None]) | (at == 0)


def the_other_way(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return at[None, :] >= at[:, None]


def every_other(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return 2 * at[None, :] <= at[:, None]


def shifted(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return at[None, :] - 1 <= at[:, None]


def weakly_hidden(x: Tensor) -> Tensor:
    return torch.where(by_comparison(x), 0.0, -2.0)


def raised(x: Tensor) -> Tensor:
    return torch.where(by_comparison(x), 1.0, float("-inf"))


def in_32_bits(x: Tensor) -> Tensor:
    """Some of which are negative then."""
    at = (torch.arange(x.shape[-2]) + (2**31 - 4)).to(torch.int32)
    return at[None, :] <= at[:, None]


def by_data(x: Tensor) -> Tensor:
    """Positions that the values of a tensor decide."""
    at = torch.arange(x.shape[-2]) * (x[0, 0, 0, 0] < 1e6)
    return at[None, :] <= at[:, None]


def with_a_gap(x: Tensor) -> Tensor:
    at = torch.cat([torch.arange(3), torch.arange(4, x.shape[-2] + 1)])
    return at[None, :] <= torch.arange(x.shape[-2])[:, None]


OTHER = [
    in_a_window,
    without_itself,
    the_other_way,
    every_other,
    shifted,
    weakly_hidden,
    raised,
    in_32_bits,
    by_data,
    with_a_gap,
]


def operands(queries: int, keys: int, gradients: bool = False) -> list[Tensor]:
    sizes = [(BATCH, HEADS, n, WIDTH) for n in (queries, keys, keys)]
    return [torch.randn(size, requires_grad=gradients) for size in sizes]


def found_causal() -> int:
    return sum(dict(report.rewrites).get("call-causal", 0) for report in last_reports())


def compiled(function: Callable[..., Tensor], **options: Any) -> Callable[..., Tensor]:
    torch.compiler.reset()
    reset_reports()
    torch.manual_seed(0)
    chosen = {"backends": ["interpreter"], "graph_cache": False, **options}
    return torch.compile(function, backend="polyfuse", options=chosen)  # type: ignore[return-value]


def masked(mask: Mask) -> Callable[..., Tensor]:
    return lambda q, k, v: attention(q, k, v, attn_mask=mask(q))


@pytest.mark.parametrize("mask", CAUSAL)
def test_for_any_length(mask: Mask) -> None:
    function = masked(mask)
    run = compiled(function)
    for length in (9, 12, 40, 2):
        given = operands(length, length)
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 2)
        torch.testing.assert_close(run(*given), function(*given))
    assert found_causal() == 1


@pytest.mark.parametrize("mask", [*CAUSAL, in_a_wide_window])
def test_for_one_length(mask: Mask) -> None:
    function, given = masked(mask), operands(9, 9)
    torch.testing.assert_close(compiled(function)(*given), function(*given))
    assert found_causal() == 1
    (report,) = last_reports()
    assert not report.kernels, "no mask is computed"


@pytest.mark.parametrize("mask", OTHER)
def test_other_masks_are_left(mask: Mask) -> None:
    function, given = masked(mask), operands(9, 9)
    torch.testing.assert_close(compiled(function)(*given), function(*given))
    assert found_causal() == 0


def test_a_window_of_any_length_is_left() -> None:
    """Some lengths are longer than the window."""
    function = masked(in_a_wide_window)
    run = compiled(function)
    for length in (9, 130):
        given = operands(length, length)
        for tensor in given:
            torch._dynamo.mark_dynamic(tensor, 2)
        torch.testing.assert_close(run(*given), function(*given))
    assert found_causal() == 0


@pytest.mark.parametrize(("queries", "keys"), [(4, 9), (9, 4)])
def test_other_keys_than_queries_are_left(queries: int, keys: int) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None]
        return attention(q, k, v, attn_mask=mask)

    given = operands(queries, keys)
    torch.testing.assert_close(compiled(function)(*given), function(*given))
    assert found_causal() == 0


def test_gradients() -> None:
    function = masked(of_one_sequence)
    run = compiled(function)
    given = operands(9, 9, gradients=True)
    weight = torch.randn(BATCH, HEADS, 9, WIDTH)
    found = torch.autograd.grad((run(*given) * weight).sum(), given)
    wanted = torch.autograd.grad((function(*given) * weight).sum(), given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert [report.kernels for report in last_reports()] == [0, 0], "no mask is computed, nor saved"


def test_numbers_of_eager_mode() -> None:
    function, given = masked(by_comparison), operands(9, 9)
    torch.testing.assert_close(compiled(function, numerics="eager")(*given), function(*given))
    assert found_causal() == 0


def test_an_index_outside_raises_as_in_eager_mode() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[-2]
        at = torch.arange(n)[torch.arange(1, n + 1)]
        return attention(q, k, v, attn_mask=at[None, :] <= at[:, None])

    run = compiled(function)
    with pytest.raises((IndexError, RuntimeError)):
        run(*operands(9, 9))
    assert found_causal() == 0
