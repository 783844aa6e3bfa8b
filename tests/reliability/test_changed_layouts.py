"""Parameters and buffers that get other memory, laid out otherwise, behind a compilation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch

from polyfuse.base.errors import InputLayoutError
from polyfuse.runtime import checks
from polyfuse.runtime import module as runtime_module
from polyfuse.runtime.frozen import entries
from polyfuse.torch_compat.bindings import may_skip_guards


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))
        self.bias = torch.nn.Parameter(torch.randn(8))
        self.register_buffer("seen", torch.zeros(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        return (x * self.weight.exp() + self.bias).relu().sum(0) + 2 * self.seen.t().sum(0)


def transposed(net: Net) -> None:
    net.weight.data = net.weight.data.t()


def strided(net: Net) -> None:
    net.bias.data = torch.arange(16.0)[::2]


def buffer(net: Net) -> None:
    net.seen.data = net.seen.data.t()


def expanded(net: Net) -> None:
    net.weight.data = net.weight.data[:, :1].clone().expand(8, 8)


def dense(net: Net) -> None:
    net.weight.data = net.weight.data.contiguous()


def step(net: Net, x: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    y = net(x)
    if torch.is_grad_enabled():
        y.square().sum().backward()
    found = [y.detach(), net.seen, *(p.grad for p in net.parameters() if p.grad is not None)]
    return [value.clone() for value in found]


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """As with versions of torch that do not guard parameters: later ones are asked not to, in a context."""
    torch._dynamo.reset()
    if may_skip_guards():
        return nullcontext
    monkeypatch.setattr(runtime_module, "may_skip_guards", lambda: True)
    monkeypatch.setattr(entries, "may_skip_guards", lambda: True)
    return partial(torch.compiler.set_stance, skip_guard_eval_unsafe=True)


@pytest.mark.each_value
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("mode", ["inference", "frozen", "training"])
def test_results_and_gradients_are_as_in_eager_mode(unguarded, native, mode):
    net = Net()
    other = copy.deepcopy(net)
    options = {"freezing": mode == "frozen", "native_host": native}
    net.compile(backend="polyfuse", options=options)
    with torch.set_grad_enabled(mode == "training"):
        step(net, x := torch.randn(8, 8)), step(other, x)
        with unguarded():
            # later versions guard buffers that are written to even so
            for change in (transposed, strided, *[buffer] * may_skip_guards(), expanded, dense, transposed):
                change(net), change(other)
                x = torch.randn(8, 8)
                torch.testing.assert_close(step(net, x), step(other, x), rtol=1e-4, atol=1e-3)


def doubled(net: Net) -> None:
    net.weight.data = net.weight.data.double()


def smaller(net: Net) -> None:
    net.weight.data = net.weight.data[:1]


@pytest.mark.each_value
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("change", [doubled, smaller])
@torch.no_grad()
def test_other_types_and_sizes_are_refused_where_nothing_guards_them(unguarded, change, frozen):
    net = Net()
    net.compile(backend="polyfuse", options={"freezing": frozen})
    net(torch.randn(8, 8))
    change(net)
    with unguarded(), pytest.raises(InputLayoutError, match="compiled"):
        net(torch.randn(8, 8))


@torch.no_grad()
def test_a_program_for_further_sizes_meets_another_layout(unguarded):
    layer = torch.nn.Linear(8, 24)
    other = copy.deepcopy(layer)
    layer.compile(backend="polyfuse", dynamic=True)
    torch.testing.assert_close(layer(x := torch.randn(3, 8)), other(x))
    for net in (layer, other):
        net.weight.data = net.weight.data.t().contiguous().t()
    with unguarded():
        for rows in (3, 1, 40, 200):
            torch.testing.assert_close(layer(x := torch.randn(rows, 8)), other(x))


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, None] * self.weight.exp()).sum(-1)


@pytest.mark.each_value
@pytest.mark.parametrize("parameters", [1, 3])
@pytest.mark.parametrize("frozen", [False, True])
@torch.no_grad()
def test_one_call_sees_that_all_are_laid_out_as_before(unguarded, monkeypatch, frozen, parameters):
    """One by one, 100 parameters take as long as many a kernel."""
    net = torch.nn.Sequential(*[Scaled() for _ in range(parameters)])
    net.compile(backend="polyfuse", options={"freezing": frozen, "native_host": False})
    x = torch.randn(2, 8)
    wanted = net(x)
    looks = []
    for module, name in ((checks, "has_layout"), (checks, "assert_layout"), (entries, "_layouts")):
        monkeypatch.setattr(module, name, lambda *args, name=name: looks.append(name))
    for _ in range(3):
        torch.testing.assert_close(net(x), wanted)
    assert not looks
