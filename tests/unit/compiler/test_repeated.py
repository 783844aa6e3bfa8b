"""Equal layers are compiled once and called for each: results, gradients, and how often one is compiled."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from polyfuse.base.settings import Settings
from polyfuse.compiler import repeated
from polyfuse.compiler.repeated import compile_repeated
from polyfuse.compiler.reports.report import last_reports, reset_reports

pytestmark = pytest.mark.usefixtures("interpreted_kernels")


@pytest.fixture(autouse=True)
def _no_reports() -> Iterator[None]:
    reset_reports()
    yield


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        first, second = self.up(self.norm(x)).chunk(2, -1)
        mixed = torch.cat((F.gelu(first) * scale, second.sigmoid()), -1)
        return x + F.dropout(self.down(mixed), 0.0, self.training)


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.mean(-1, keepdim=True)
        skipped = x
        for layer in self.layers:
            x = layer(x, scale)
        return x, skipped * x.sin()


def compiled_graphs() -> list[str]:
    return [report.kind for report in last_reports()]


def train(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Results and gradients of one step."""
    x = x.clone().requires_grad_()
    first, second = model(x)
    (first.square().mean() + second.mean()).backward()
    gradients = [p.grad for p in model.parameters()]
    assert x.grad is not None
    return [first.detach(), second.detach(), x.grad, *(g for g in gradients if g is not None)]


def test_training_computes_what_eager_mode_does() -> None:
    torch.manual_seed(0)
    model = Layers(8)
    x = torch.randn(3, 5, 16)
    other = copy.deepcopy(model)
    run = torch.compile(other, backend="polyfuse", options={"repeated_layers": "on", "strict": True})
    expected = train(model, x)
    torch.testing.assert_close(train(run, x), expected)
    kinds = compiled_graphs()
    assert kinds.count("forward") <= 3
    assert kinds.count("backward") == kinds.count("forward")
    model.zero_grad()
    other.zero_grad()
    torch.testing.assert_close(train(run, x * 2), train(model, x * 2))
    assert compiled_graphs() == kinds


@pytest.mark.slow
def test_parts_without_gradients_within_the_layers() -> None:
    torch.manual_seed(1)
    # in f32 the gradients of eager mode itself are further from exact ones than the comparison allows
    norms = [torch.randn(16, dtype=torch.float64, requires_grad=True) for _ in range(7)]

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            angle = x.cos()
        for weight in norms:
            with torch.no_grad():
                largest = x.abs().amax(-1, keepdim=True)
            x = F.layer_norm(x / largest + angle, (16,), weight).sin() * x.sigmoid()
        return x.square().sum()

    run = torch.compile(step, backend="polyfuse", options={"repeated_layers": "on", "strict": True})
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(step(x), [x, *norms])
    torch.testing.assert_close(torch.autograd.grad(run(x), [x, *norms]), expected)
    assert compiled_graphs().count("backward") < len(norms)


def test_parameters_that_change_and_inference() -> None:
    torch.manual_seed(0)
    model = Layers(7).eval()
    run = torch.compile(model, backend="polyfuse", options={"repeated_layers": "on", "strict": True})
    x = torch.randn(3, 16)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        model.layers[3].up.weight.mul_(2)
        torch.testing.assert_close(run(x), model(x))
    assert compiled_graphs().count("inference") <= 3


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("options", "grad"),
    [
        ({}, True),  # small layers
        ({"repeated_layers": "off"}, True),
        ({"repeated_layers": "on", "freezing": True}, False),
        ({"repeated_layers": "on", "device_graphs": True}, True),
    ],
)
def test_left_whole(options: dict[str, Any], grad: bool) -> None:
    """What has parts of its own for each parameter, and layers that are quicker than calls of them."""

    def compiler(gm: Any, example_inputs: Sequence[Any]) -> Any:
        raise AssertionError("cut")

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Any:
        assert compile_repeated(gm, example_inputs, Settings.resolve(None, options), compiler) is None
        return gm.forward

    with torch.set_grad_enabled(grad):
        torch.compile(Layers(7), backend=backend)(torch.randn(3, 16))


def test_a_region_of_unknown_values_is_not_called_apart():
    """As of a Perceiver, where Dynamo says of a node in the region no value."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    region = SimpleNamespace(inputs=(), outputs=(), nodes=(node,))
    assert not repeated._is_large(region)  # type: ignore[arg-type]
    node.meta["example_value"] = torch.empty(1 << 24)
    assert repeated._is_large(region)  # type: ignore[arg-type]
