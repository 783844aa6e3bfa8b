"""Results of compiled functions lie as in eager mode: `as_strided` reads them so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import polyfuse  # noqa: F401 - registers the backend


def by_columns(*size: int) -> torch.Tensor:
    return torch.rand(size[::-1]).permute(*range(len(size))[::-1])


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: F.batch_norm(x, None, None, training=True), (by_columns(3, 4, 5),)),
        (lambda x: F.channel_shuffle(x, 2), (torch.rand(2, 4, 3, 3).to(memory_format=torch.channels_last),)),
        (lambda x: F.channel_shuffle(x, 2), (by_columns(1, 2, 1, 3),)),
        (torch.floor_divide, (by_columns(4, 5) * 9, torch.tensor(2.0))),
        (lambda x: torch.floor_divide(x, 2), (torch.rand(1, 5).expand(4, 5),)),
        (lambda x: torch.floor_divide(x, 2), (torch.rand(5, 1, 3).expand(5, 4, 3).transpose(0, 2),)),
        (torch.floor_divide, (torch.rand(1, 5).expand(4, 5), torch.rand(4, 1).expand(4, 5) + 1)),
        (torch.heaviside, (by_columns(4, 1, 5) - 0.5, by_columns(4, 5))),
        (torch.logaddexp, (by_columns(4, 1, 5), by_columns(4, 5))),
        (torch.angle, (torch.complex(by_columns(4, 5), by_columns(4, 5) - 0.5),)),
        (torch.masked_scatter, (by_columns(4, 5), by_columns(4, 5) > 0.5, torch.rand(20))),
    ],
)
def test_elements_in_the_order_of_memory(
    function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
) -> None:
    def flat(*args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = function(*args)
        return result, result.as_strided((result.numel(),), (1,)) + 1

    torch._dynamo.reset()
    options = {"backends": ["interpreter"], "strict": True, "graph_cache": False}
    results = torch.compile(flat, backend="polyfuse", options=options)(*inputs)
    for actual, expected in zip(results, flat(*inputs), strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()


def test_sizes_that_data_decide() -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        rows = x[(x[:, 0] > 0).nonzero().squeeze(1)]
        return F.dropout(rows, 0.5).sum() * 0 + torch.logaddexp(rows.t(), rows.t() + 1).sum()

    torch._dynamo.reset()
    options = {"backends": ["interpreter"], "strict": True, "graph_cache": False}
    x = torch.randn(9, 8, requires_grad=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(chosen, backend="polyfuse", fullgraph=True, options=options)
        actual, expected = (torch.autograd.grad(f(x), x)[0] for f in (compiled, chosen))
    torch.testing.assert_close(actual, expected)


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_margins_lie_as_in_eager_mode(mode: str, last: bool) -> None:
    x = torch.rand(2, 3, 5, 4)
    x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
    w = torch.rand(2, 3, 8, 7)
    strides = []
    torch._dynamo.reset()
    options = {"backends": ["interpreter"], "strict": True, "graph_cache": False}
    for pad in (F.pad, torch.compile(F.pad, backend="polyfuse", options=options)):
        padded = pad(x, (1, 2, 2, 1), mode)
        (grad,) = torch.autograd.grad(padded, x, w.to(memory_format=torch.channels_last))
        strides.append((padded.stride(), grad.stride(), grad))
    assert strides[0][:2] == strides[1][:2]
    torch.testing.assert_close(strides[1][2], strides[0][2])


def test_random_numbers_are_drawn_in_the_order_of_memory() -> None:
    def drawn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = torch.empty_like(x).bernoulli_(0.5)
        numbers = torch.normal(x, x + 1), torch.poisson(x)
        return F.dropout(x, 0.5), F.dropout(y.relu(), 0.3), mask, F.alpha_dropout(y, 0.5, True), *numbers

    torch._dynamo.reset()
    options = {"backends": ["interpreter"], "strict": True, "graph_cache": False}
    x, y = torch.rand(7, 8).t(), torch.rand(2, 3, 5, 4).to(memory_format=torch.channels_last)
    results = []
    for function in (drawn, torch.compile(drawn, backend="polyfuse", options=options)):
        torch.manual_seed(3)
        results.append(function(x, y))
    for actual, expected in zip(*reversed(results), strict=True):
        torch.testing.assert_close(actual, expected)
        assert actual.stride() == expected.stride()
