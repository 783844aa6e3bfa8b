"""Values that are no plain tensors of numbers: fractions read from data, ragged tensors, quantised ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowered import check, compare
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


@pytest.mark.slow
def test_fractions_read_from_tensors() -> None:
    def function(x: torch.Tensor) -> Any:
        value = x.sum().item()
        other = value * 2 + 1
        filled = torch.full((3,), value), torch.arange(3) * other, x.masked_fill(x > 2, value)
        return *filled, x.sin() + other, x.int() + value, x.add(x, alpha=value), x[1].int().item(), other

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for x in (torch.tensor([3.5, -2.0]), torch.tensor([float("inf"), 0.25])):
            check(function, x, native=False)
            run = torch.compile(function, backend="polyfuse", options={"backends": ("interpreter",)})
            compare(run(x), function(x))


def test_a_fraction_and_a_size_read_from_tensors() -> None:
    def function(n: torch.Tensor, x: torch.Tensor) -> Any:
        count, value = n.item(), x[0].item()
        torch._check(count >= 2)
        torch._check(count < 10)
        return x * (count * value), torch.ones(count) * value, count / 2 * x

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(function, torch.tensor(4), torch.tensor([3.5, 2.0]), native=False)


def test_a_slice_that_ends_where_data_say() -> None:
    """Its size has a name of its own, since the end may lie behind the last element."""

    def function(n: torch.Tensor, x: torch.Tensor) -> Any:
        y = x * 2
        part = y[:, : n.item()]
        y = y + 1
        return part.softmax(-1), part.sum(), y[:, : n.item()].t() + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(function, torch.tensor(2), torch.randn(3, 5), native=False)
        run = torch.compile(
            function, backend="polyfuse", options={"backends": ("interpreter",), "strict": True}
        )
        for n in (2, 5, 1, 9):
            inputs = torch.tensor(n), torch.randn(3, 5)
            compare(run(*inputs), function(*inputs))
        empty = run(torch.tensor(0), torch.randn(3, 5))
        assert [r.shape for r in empty] == [(3, 0), (), (0, 3)] and empty[1] == 0


def test_numbers_read_from_what_the_same_kernel_could_make() -> None:
    def function(x: torch.Tensor) -> Any:
        whole = x.to(torch.int64)
        first, second = whole.tolist()[:2]
        return x + (first + second), whole

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(function, torch.tensor([3.0, 5.0]), native=False)


@pytest.mark.usefixtures("interpreted_kernels")
def test_a_fraction_cut_to_a_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(int(x.max().item()), 3) + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend="polyfuse", options={"strict": True})
        for x in (torch.tensor([3.5, 1.0]), torch.tensor([7.25, 1.0])):
            compare(run(x), function(x))


@pytest.mark.slow
def test_elements_that_data_say_are_overwritten() -> None:
    def function(n: torch.Tensor, x: torch.Tensor) -> Any:
        count = n.item()
        y, z, w = x.clone(), x.clone(), x.clone()
        y[:count].add_(1)
        z[:, count:] = 7
        w[:count:2] = 1
        return y, z, w

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        options = {"backends": ("interpreter",), "strict": True}
        run = torch.compile(function, backend="polyfuse", options=options)
        for n in (2, 5, 1, 0, -1, -4):
            inputs = torch.tensor(n), torch.randn(6, 5)
            compare(run(*inputs), function(*inputs))


NOWHERE = {
    "list": lambda x, i: x[[0]] + 1,
    "index": lambda x, i: x[i] + 1,
    "column": lambda x, i: x[None, i, None] * 2,
    "gather": lambda x, i: x.gather(0, i) + 1,
    "rows": lambda x, i: x.index_select(0, i) + 1,
    "embedding": lambda x, i: F.embedding(i, x[:, None].expand(-1, 3)) + 1,
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", NOWHERE)
@pytest.mark.parametrize("backend", ["cpp", "interpreter"])
def test_indices_in_nothing_are_refused(name: str, backend: str) -> None:
    """As in eager mode; no memory is read where there is none."""
    torch._dynamo.reset()
    run = torch.compile(NOWHERE[name], backend="polyfuse", options={"backends": (backend,)})
    with pytest.raises((IndexError, RuntimeError), match=r"size 0|should be positive|out of range"):
        run(torch.empty(0), torch.tensor([0]))


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["cpp", "interpreter"])
def test_indices_in_what_data_leave_are_read_with_care(backend: str) -> None:
    def function(x: torch.Tensor, chosen: torch.Tensor, i: torch.Tensor) -> Any:
        some = x[chosen]
        return some[i] + 1, some[[-1]] * 2, some.gather(0, i), (some * 3).gather(0, i)

    x, i = torch.randn(4), torch.tensor([1, 0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        run = torch.compile(function, backend="polyfuse", options={"backends": (backend,)})
        for chosen in (torch.ones(4, dtype=torch.bool), x > x.min()):
            compare(run(x, chosen, i), function(x, chosen, i))
        # nothing is left: as in eager mode, no index of it is in range
        with pytest.raises(IndexError, match="size 0"):
            function(x, x > 9, i)
        with pytest.raises(IndexError, match="size 0"):
            run(x, x > 9, i)


def test_an_empty_batch_is_resampled() -> None:
    def function(x: torch.Tensor) -> Any:
        return F.interpolate(x, scale_factor=2) + 1, F.interpolate(x, size=(5, 7), mode="bilinear")

    check(function, torch.randn(0, 3, 4, 4), native=False)


def test_numbers_read_from_data_and_infinity() -> None:
    def function(x: torch.Tensor) -> Any:
        value = x.item()
        return value == math.inf, value == -math.inf, value < math.inf, x + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        run = torch.compile(function, backend="polyfuse", options={"backends": ("interpreter",)})
        for number in (3.0, math.inf, -math.inf):
            x = torch.tensor([number])
            assert run(x)[:3] == function(x)[:3]


def test_a_distance_of_sizes_is_a_size() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.arange(abs(x.shape[0] - y.shape[0])) * 2 + x.sum()

    options = {"backends": ("interpreter",), "strict": True}
    run = torch.compile(function, backend="polyfuse", dynamic=True, options=options)
    for n, m in ((7, 3), (3, 8)):
        x, y = torch.randn(n), torch.randn(m)
        compare(run(x, y), function(x, y))


def test_ragged_tensors() -> None:
    """The length that differs from row to row is a name to the compiler, not a number."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        results = x.sin() * 2 + 1, x.sum(-1, keepdim=True), F.gelu(x) @ torch.ones(3, 4), F.softmax(x, -1)
        return [r.values() for r in results]

    rows = [torch.randn(2, 3), torch.randn(4, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged)
    options: dict[str, Any] = {"backends": ("interpreter",), "strict": True}
    run = torch.compile(function, backend="polyfuse", dynamic=False, options=options)
    compare(run(x), function(x))


@pytest.mark.quick(2)
@pytest.mark.parametrize("loss", [F.mse_loss, F.huber_loss, F.l1_loss, F.binary_cross_entropy_with_logits])
def test_means_over_jagged_elements_have_gradients(loss: Callable[..., torch.Tensor]) -> None:
    """Their count is no input of the graph of its own."""
    layer = nn.Linear(3, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return loss(layer(x).values(), x.values().detach().sigmoid()) / x.values().shape[0]

    run = torch.compile(function, backend="polyfuse", options={"backends": ("interpreter",), "strict": True})
    for lengths in ((2, 4), (2, 4), (1, 5, 3)):
        rows = [torch.randn(length, 3) for length in lengths]
        results = []
        for compute in (run, function):
            x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
            value = compute(x)
            gradients = torch.autograd.grad(value, (x, *layer.parameters()))
            results.append((value, gradients[0].values(), *gradients[1:]))
        compare(*results)


def test_quantised_elements_are_as_small_as_they_are() -> None:
    """They are traced as what was quantised; memory taken over from them would be too small."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 2, torch.quint8).dequantize() + 1

    record = check(function, torch.randn(40, 5), native=False)
    try:
        with FakeTensorMode():
            function(torch.randn(40, 5))
    except RuntimeError:  # in torch 2.11
        assert record.graphs == [], "what cannot be traced runs in eager mode"
        return
    kinds = {b.torch_dtype for b in record.graph.buffers.values() if b.dtype is None}
    assert kinds == {"quint8"}
