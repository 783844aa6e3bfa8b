"""Inputs that share memory, of which one is written: numbers are eager mode's, wherever they begin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.testing import CompileCounterWithBackend

from polyfuse.base.errors import InputLayoutError
from polyfuse.torch_compat.captures.written_inputs import (
    input_memory,
    overlapping_raises,
    with_written_apart,
)

OPTIONS = {"backends": ["interpreter"], "graph_cache": False}

Calls = tuple[tuple[int, int, int], ...]
"""Where two inputs begin in one memory, and its size."""


def written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.add_(1)
    y.mul_(2)
    return x + y, x.view(-1)[1:], y.view(4, 2)[1]


def compare(
    function: Callable[..., Tensor], pairs: Callable[[int, int, int], list[Tensor]], calls: Calls, **how
):
    torch.compiler.reset()
    compiled = torch.compile(function, backend="polyfuse", **how)
    for first, second, size in calls:
        results = []
        for run in (function, compiled):
            inputs = pairs(first, second, size)
            results.append((*run(*inputs), *inputs))
        for actual, expected in zip(*reversed(results), strict=True):
            torch.testing.assert_close(actual, expected)
            assert (actual.stride(), actual.storage_offset()) == (
                expected.stride(),
                expected.storage_offset(),
            )
            assert (actual._base is None) == (expected._base is None)


def views(first: int, second: int, size: int) -> list[Tensor]:
    base = torch.arange(float(size))
    return [base[first : first + 8], base[second : second + 8]]


def aliases(first: int, second: int, size: int) -> list[Tensor]:
    return [each.detach() for each in views(first, second, size)]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_that_move(dynamic: bool) -> None:
    calls = ((0, 4, 32), (9, 1, 32), (0, 4, 40))
    compare(written, views, calls, dynamic=dynamic, options=OPTIONS)


def test_views_that_lie_apart_and_meet_later() -> None:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("polyfuse")
    compiled = torch.compile(written, backend=counter, dynamic=False)
    for first, second in ((0, 8), (9, 20), (24, 3), (0, 4), (1, 16)):
        inputs, expected = views(first, second, 32), views(first, second, 32)
        torch.testing.assert_close(compiled(*inputs), written(*expected))
        torch.testing.assert_close(inputs, expected)
    assert counter.frame_count == 1


def test_views_of_other_memories() -> None:
    def apart(first: int, second: int, size: int) -> list[Tensor]:
        return [views(first, second, size)[0], views(first, second, 32)[1]]

    torch.compiler.reset()
    compiled = torch.compile(written, backend="polyfuse", dynamic=False, options=OPTIONS)
    for pairs in (views, apart, views):
        inputs, expected = pairs(0, 4, 32), pairs(0, 4, 32)
        torch.testing.assert_close(compiled(*inputs), written(*expected))
        torch.testing.assert_close(inputs, expected)


def other_memories() -> list[Tensor]:
    return [torch.arange(8.0), torch.arange(4.0, 12.0)]


def one_memory_of_numpy() -> list[Tensor]:
    memory = torch.arange(32.0).numpy()
    return [torch.from_numpy(memory[:8]), torch.from_numpy(memory[4:12])]


@pytest.mark.parametrize(("dynamic", "cached"), [(False, False), (True, True)])
def test_other_memories_first_and_one_later(dynamic: bool, cached: bool) -> None:
    options = {**OPTIONS, "graph_cache": cached}
    for _ in range(1 + cached):  # the second time it is found
        torch.compiler.reset()
        compiled = torch.compile(written, backend="polyfuse", options=options, dynamic=dynamic)
        for made in (other_memories, partial(views, 0, 4, 32), other_memories, one_memory_of_numpy):
            inputs, expected = made(), made()
            torch.testing.assert_close(compiled(*inputs), written(*expected))
            torch.testing.assert_close(inputs, expected)
        assert len(_debug_get_cache_entry_list(written)) == 1


def test_many_inputs_of_which_two_meet_later() -> None:
    def step(values: list[Tensor], other: Tensor) -> Tensor:
        torch._foreach_mul_(values, 2)
        return other + 1

    torch.compiler.reset()
    compiled = torch.compile(step, backend="polyfuse", options=OPTIONS, dynamic=False)
    for offset in (60, 0, 45, 60, 20):
        outcomes = []
        for run in (step, compiled):
            flat = torch.arange(64.0)
            outcomes.append((run(list(flat[:60].view(20, 3)), flat[offset : offset + 4]), flat))
        torch.testing.assert_close(*outcomes)


def test_gradients_of_inputs_that_meet_later() -> None:
    def step(x: Tensor, state: Tensor) -> Tensor:
        state.add_(1)
        return (x * state.sum()).sum()

    torch.compiler.reset()
    compiled = torch.compile(step, backend="polyfuse", options=OPTIONS, dynamic=False)
    for shared in (False, True):
        outcomes = []
        for run in (step, compiled):
            state = torch.arange(6.0)
            x = (state.detach() if shared else state.clone()).requires_grad_()
            run(x, state).backward()
            outcomes.append((x.grad, state))
        torch.testing.assert_close(*outcomes)


def test_aliases_that_autograd_does_not_know(warned: list[str]) -> None:
    compare(written, aliases, ((0, 4, 32), (2, 6, 32)), dynamic=False, options=OPTIONS)
    assert any("no views of one tensor runs in eager mode" in text for text in warned)
    torch.compiler.reset()
    with pytest.raises(BackendCompilerFailed, match="no views of one tensor"):
        torch.compile(written, backend="polyfuse", options={**OPTIONS, "strict": True})(*aliases(0, 4, 32))


def test_parameters_of_a_flat_buffer_stay_compiled() -> None:
    flat = torch.zeros(64)
    parts = [torch.nn.Parameter(part) for part in flat.split(3)]

    def step(parts: list[Tensor]) -> None:
        torch._foreach_add_(parts, 1.0)

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(step, backend="polyfuse", options={**OPTIONS, "strict": True})(parts)
    assert torch.equal(flat, torch.ones(64))


def test_a_graph_that_was_read_from_a_cache_raises() -> None:
    """Of such a graph there is no captured form that could run instead."""
    inputs = other_memories()
    metadata = SimpleNamespace(input_info=[SimpleNamespace(mutates_data=i == 1) for i in range(2)])
    call = with_written_apart(lambda *given: given, overlapping_raises, input_memory(None, inputs), metadata)
    assert call(*inputs) == tuple(inputs)
    with pytest.raises(InputLayoutError, match="overlaps another"):
        call(*views(0, 4, 32))
