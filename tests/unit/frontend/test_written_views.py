"""Results that are views of what was written in place have the values, strides and memory of eager mode."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from polyfuse.torch_compat.tracing.output_views import OutputView, with_views

OPTIONS = {"backends": ["interpreter"]}

WRITES: dict[str, Callable[[Tensor], object]] = {
    "tanh_": lambda x: x.tanh_(),
    "relu": lambda x: torch.nn.functional.relu(x, inplace=True),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([1]), 0.5),
    "setitem": lambda x: x.__setitem__(0, 1.0),
    "foreach": lambda x: torch._foreach_mul_([x], 0.5),
    "of a part": lambda x: x[1:].mul_(2),
    "of a flat view": lambda x: x.flatten(0, 1).sigmoid_(),
    "out": lambda x: torch.exp(x.clone(), out=x),
}

VIEWS: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "flatten": lambda x: x.flatten(0, 1),
    "detached": lambda x: x.detach().flatten(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, -1)),
    "narrow": lambda x: x.narrow(0, 1, x.shape[0] - 2),
    "transpose": lambda x: x.transpose(0, 2),
    "slice": lambda x: x[1:, :, 2:],
    "windows": lambda x: x.unfold(2, 3, 2),
    "several": lambda x: (x.flatten(0, 1), x, *x.unbind(1)),
    "contiguous": lambda x: x.contiguous(),
}

INPUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.linspace(-2, 2, 240).view(6, 4, 10).clone(),
    "permuted": lambda: torch.linspace(-2, 2, 240).view(10, 6, 4).permute(1, 2, 0),
    "part": lambda: torch.linspace(-2, 2, 364).view(7, 4, 13)[1:, :, 2:12],
    "step": lambda: torch.linspace(-2, 2, 480).view(12, 4, 10)[::2],
}


def _given(write: str, view: str) -> list[str]:
    """What the inputs are tried with: all with the first write; the others with those that have gaps."""
    given = ["part", "step"] if WRITES[write] is not WRITES["tanh_"] else list(INPUTS)
    if write == "of a flat view":
        given.remove("step")  # that flat view is a copy
    return given


def _layouts(results: object) -> list[tuple[torch.Size, tuple[int, ...], int]]:
    given = results if isinstance(results, tuple) else (results,)
    return [(r.shape, r.stride(), r.storage_offset()) for r in given]


def _check(f: Callable[[Tensor], object], make: Callable[[], Tensor], dynamic: bool) -> None:
    torch._dynamo.reset()
    expected_input, found_input = make(), make()
    expected = f(expected_input)
    found = torch.compile(f, backend="polyfuse", options=OPTIONS, dynamic=dynamic)(found_input)
    assert _layouts(found) == _layouts(expected)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_input, expected_input)
    # they are views of the input, or copies, as in eager mode
    with torch.no_grad():
        expected_input.add_(1)
        found_input.add_(1)
    torch.testing.assert_close(found, expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_written_input(view: str) -> None:
    for name in INPUTS:
        _check(lambda x: (WRITES["tanh_"](x), VIEWS[view](x))[1], INPUTS[name], dynamic=True)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("write", WRITES)
def test_each_way_of_writing(write: str, dynamic: bool) -> None:
    for name in _given(write, "flatten"):
        _check(lambda x: (WRITES[write](x), x.flatten(0, 1))[1], INPUTS[name], dynamic)


def test_a_view_that_was_taken_before() -> None:
    def f(x: Tensor) -> Tensor:
        view = x.flatten(0, 1)
        x.tanh_()
        return view

    _check(f, INPUTS["part"], dynamic=True)


def test_another_size_and_offset_at_the_next_call() -> None:
    def f(x: Tensor) -> Tensor:
        x.tanh_()
        return x.flatten(0, 1)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="polyfuse", options=OPTIONS, dynamic=True)
    for rows, width, begin in ((7, 13, 2), (5, 17, 3), (9, 12, 1)):
        memory = torch.randn(rows, 4, width)
        expected = f(memory.clone()[1:, :, begin:-1])
        found = compiled(memory[1:, :, begin:-1])
        assert _layouts(found) == _layouts(expected)
        torch.testing.assert_close(found, expected)


@pytest.mark.quick(1)
@pytest.mark.parametrize("first", [0, 4])
def test_an_input_begins_elsewhere_at_the_next_call(first: int) -> None:
    """No guard of Dynamo's tells the offset of an input, and it may trace it as a number."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return x[1:], x.flatten(), x.view(torch.complex64), x.view(torch.int16)

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="polyfuse", options=OPTIONS, dynamic=True)
    memory = torch.arange(60.0)
    for offset in (first, 2, 8, 0):
        x = memory[offset : offset + 24].view(4, 6)
        found, expected = compiled(x), f(x)
        assert _layouts(found) == _layouts(expected)
        assert all(map(torch.equal, found, expected))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
def test_offsets_that_the_program_names_are_those_of_the_memory(dynamic: bool) -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        changed = torch.as_strided_scatter(x, torch.zeros(3), (3,), (1,), 5)
        return x.as_strided((3,), (1,), 1) * 2, x[1:].as_strided((3,), (1,), 2) * 2, changed * 1

    torch._dynamo.reset()
    compiled = torch.compile(f, backend="polyfuse", options=OPTIONS, dynamic=dynamic)
    memory = torch.arange(60.0)
    for offset in (0, 2, 8):
        x = memory[offset : offset + 24].view(4, 6)
        assert all(map(torch.equal, compiled(x), f(x)))


def test_gradients_through_the_view() -> None:
    def f(x: Tensor, w: Tensor) -> Tensor:
        x.add_(w.sin())
        x.tanh_()
        return x.flatten(0, 1)

    def gradients(g: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        leaf = torch.linspace(-2, 2, 364).view(7, 4, 13).clone().requires_grad_()
        w = torch.linspace(1, 2, 10).requires_grad_()
        out = g((leaf * 1)[1:, :, 2:12], w)
        (out * torch.linspace(0, 1, 240).view(24, 10)).sum().backward()
        return [out.detach(), leaf.grad, w.grad]

    expected = gradients(f)
    torch._dynamo.reset()
    found = gradients(torch.compile(f, backend="polyfuse", options=OPTIONS, dynamic=True))
    assert _layouts(found[0]) == _layouts(expected[0])
    torch.testing.assert_close(found, expected)


def test_comparing_strides_costs_a_few_calls_for_each_view() -> None:
    given = torch.arange(12.0).view(3, 4)
    results = [given[1:]] * 5
    geometry = "(s0 - 1, s1, ), (s1, 1, ), s1"
    views = [OutputView(i, 0, True, geometry, (("s0", 1), ("s1", 2))) for i in range(5)]

    def compiled(*args: object) -> list[Tensor]:
        return results

    def calls(function: Callable[..., object]) -> int:
        events = []
        sys.setprofile(lambda frame, event, what: events.append(event))
        function(given, 3, 4)
        sys.setprofile(None)
        return sum(event in ("call", "c_call") for event in events)

    assert with_views(compiled, ()) is compiled
    assert calls(with_views(compiled, views)) - calls(compiled) <= 1 + 5 * len(views)
    assert with_views(compiled, views)(given, 3, 4) is results
