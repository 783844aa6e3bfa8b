"""Training steps need no more memory at once than eager mode's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memory_peaks import peak
from polyfuse.schedule.peak.live import Live, Step, Storages
from polyfuse.schedule.peak.order import lower_peak

SLACK = 200 << 10
"""Bytes that a library takes for itself, beside what eager mode's does not show."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def steps(*touched: str) -> list[Step]:
    return [Step(tuple(names.split()), 0, False) for names in touched]


def found(sizes: dict[str, int], given: str = "", returned: str = "") -> Storages:
    return Storages(sizes, frozenset(given.split()), frozenset(returned.split()))


def test_bytes_in_use() -> None:
    live = Live(steps("a b", "b c", "c d"), found({"a": 1, "b": 10, "c": 100, "d": 1000}, "a", "d"))
    assert live.profile([0, 1, 2]) == [(11, 10), (110, 100), (1100, 1000)]


def test_a_result_reuses_the_memory_of_an_operand_that_dies() -> None:
    over = [Step(("a", "b"), 0, True), Step(("b", "c"), 7, True)]
    assert Live(over, found({"a": 8, "b": 8, "c": 9}, "a", "c")).profile([0, 1]) == [(8, 8), (24, 9)]


def test_what_is_large_only_while_it_runs_goes_first() -> None:
    # a gradient that is passed on, one of a weight that needs a copy, and who reads the first
    doing = [Step(("dy", "dx"), 0, False), Step(("dy", "w"), 50, False), Step(("dx", "y"), 0, False)]
    live = Live(doing, found({"dy": 50, "dx": 50, "w": 200, "y": 50}, "dy", "w y"))
    order = lower_peak([set(), set(), {0}], live)
    assert order == [1, 0, 2]
    assert max(live.profile(order))[0] < max(live.profile([0, 1, 2]))[0]


def test_dependencies_are_preserved() -> None:
    doing = [Step((f"s{i}",), 10 * (i % 5), False) for i in range(30)]
    edges: list[set[int]] = [set() if i == 0 else {i - 1} for i in range(30)]
    live = Live(doing, found({f"s{i}": 100 for i in range(30)}))
    assert lower_peak(edges, live) == list(range(30))


class Steps(nn.Module):
    """A recurrent cell over some steps."""

    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.cell = cell(64, 128)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], 128)
        c = h
        for t in range(x.shape[0]):
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(x[t], (h, c))
            else:
                h = self.cell(x[t], h)
        return h


class Checkpointed(nn.Module):
    """Layers whose inner values are computed again."""

    def __init__(self) -> None:
        super().__init__()
        layer = lambda: nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128), nn.LayerNorm(128))  # noqa: E731
        self.layers = nn.ModuleList([layer() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + checkpoint(layer, x, use_reentrant=False)
        return x


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "lstm": lambda: (Steps(nn.LSTMCell), torch.randn(6, 64, 64)),
    "gru": lambda: (Steps(nn.GRUCell), torch.randn(6, 64, 64)),
    "checkpoints": lambda: (Checkpointed(), torch.randn(512, 128)),
    "mlp": lambda: (
        nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024)),
        torch.randn(256, 512),
    ),
    "layer": lambda: (
        nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True),
        torch.randn(4, 64, 128),
    ),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_needs_no_more_than_eager_mode(name: str) -> None:
    model, x = MODELS[name]()
    compiled = torch.compile(model, backend="polyfuse", options={"strict": True}, dynamic=False)

    def step(called: Callable[[Tensor], Tensor]) -> list[Tensor]:
        # not `backward`: the gradients that it lets go of were there before, and when they go is not fixed
        return list(torch.autograd.grad(called(x).square().mean(), list(model.parameters())))

    expected = step(model)
    for got, wanted in zip(step(compiled), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    del expected, got, wanted
    assert peak(lambda: step(compiled) and None) <= peak(lambda: step(model) and None) + SLACK


def test_of_no_steps_there_is_one_order() -> None:
    assert lower_peak([], Live([], Storages({}, frozenset(), frozenset()))) == []
