"""Small functions that a sweep once found wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from models import checks
from polyfuse.base.errors import PolyfuseError


def block_diagonal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A part of width one beside zeros: one element read for some lanes only."""
    left = torch.cat([a, torch.zeros(5, 5)], 1)
    return torch.cat([left, torch.cat([b, torch.zeros(5, 4)], 1)])


def diagonal_scatter(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.diagonal_scatter(b @ b.t(), a[:4, 0], offset=-1)


@pytest.mark.parametrize("function", [block_diagonal, diagonal_scatter])
def test_found_by_a_sweep(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    arguments = torch.randn(5, 1), torch.randn(5, 2)
    compiled = checks.compile_function(function, dynamic=False)
    checks.assert_close([compiled(*arguments)], [function(*arguments)], "output")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 7, 40])
def test_a_zero_keeps_its_sign_at_a_limit(count: int, dtype: torch.dtype) -> None:
    edges = torch.tensor([-0.0, 0.0, math.nan, -1.0, 2.0, math.inf, -math.inf, 5.0], dtype=dtype)
    x = edges.repeat(5)[:count]

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        limited = F.relu(x), F.relu6(x), x.clamp(min=0.0), x.clamp(-0.0, 1.0), x.clamp(max=0.0)
        return [*limited, x.clamp(math.nan, 1.0), F.hardtanh(x, 0.0, 1.0)]

    for found, expected in zip(checks.compile_function(function)(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        numbers = ~expected.isnan()
        assert torch.equal(found[numbers].signbit(), expected[numbers].signbit())


def test_memory_that_is_given_back_is_read_before() -> None:
    """As sharded training gives back gathered parameters; nothing in the schema of the call says so."""

    def function(x: torch.Tensor) -> torch.Tensor:
        early = torch.sin(x + 1)
        x.untyped_storage().resize_(0)
        return torch.cos(early)

    x = torch.randn(23)
    expected = torch.cos(torch.sin(x + 1))
    torch.testing.assert_close(checks.compile_function(function, dynamic=False)(x), expected)
    assert x.untyped_storage().size() == 0


def checked_number(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    number = n.item()
    torch._check(number == 3)
    return x + number


def checked_size(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    number = n.item()
    torch._check(number == x.size(0))
    return x + number


def checked_count(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    places = n.nonzero()
    torch._check(places.size(0) == 1)
    return x[places[:, 0]] * 2


@pytest.mark.parametrize("function", [checked_number, checked_size, checked_count])
def test_what_a_check_says_of_data_is_checked(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Torch puts the number in everywhere, in the condition of its own check too."""
    flags = function is checked_count
    good = torch.tensor([0, 0, 1]) if flags else torch.tensor(3)
    bad = (torch.tensor([1, 1, 0]), torch.tensor([0, 0, 0])) if flags else (torch.tensor(4), torch.tensor(-3))
    x = torch.randn(3)
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        compiled = checks.compile_function(function)
        torch.testing.assert_close(compiled(x, good), function(x, good))
        for other in bad:
            with pytest.raises((RuntimeError, PolyfuseError)):
                compiled(x, other)
        torch.testing.assert_close(compiled(x, good), function(x, good))


def test_gradients_that_are_traced_when_they_run() -> None:
    """Compiled autograd hands its graph a list of tensors."""
    model, twin = (torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh()) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    x = torch.randn(5, 4)
    with torch._dynamo.config.patch(compiled_autograd=True):
        step = torch.compile(lambda: twin(x).square().sum().backward(), backend="polyfuse")
        step()
        step()
    for _ in range(2):
        model(x).square().sum().backward()
    found, expected = ([p.grad for p in m.parameters()] for m in (twin, model))
    torch.testing.assert_close(found, expected)
