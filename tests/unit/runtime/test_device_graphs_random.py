"""Random use of several recorded programs at once: whatever anybody holds keeps its value."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from recorded import compiled
from torch import nn

from fake_graphs import FakeDevice
from obstacle import around
from polyfuse.runtime.graphs import copied
from polyfuse.runtime.graphs import inputs as graph_inputs


class Middle(nn.Module):
    """A layer with something in it that cannot be recorded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return around(x, self.w)


class Session:
    """Compiled functions and a model, which of their results are held, and what these must be."""

    def __init__(self, seed: int, parts: bool) -> None:
        self.choose = random.Random(seed)
        torch.manual_seed(seed)
        w = torch.randn(6, 6)

        def middle(x: torch.Tensor) -> torch.Tensor:
            return around(x, w) if parts else x

        self.functions = [
            lambda x: (torch.relu(middle(x)).sum(0), x * 2),
            lambda x: middle(x.cos()) + 1,
            lambda x: (middle(x).exp().view(-1)[1:], x),
        ]
        self.compiled = [compiled(f, dynamic=number == 1) for number, f in enumerate(self.functions)]
        ends = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 6), nn.Sigmoid())
        self.model = nn.Sequential(ends[0], Middle(8), ends[1]) if parts else nn.Sequential(*ends)
        self.reference = copy.deepcopy(self.model)
        self.run = compiled(self.model, dynamic=True)
        self.held: list[tuple[Any, Any]] = []
        self.pending: list[tuple[torch.Tensor, torch.Tensor]] = []

    def input(self) -> torch.Tensor:
        """Sometimes new, sometimes a result that is held."""
        candidates = [a for got, _ in self.held for a in ([got] if isinstance(got, torch.Tensor) else got)]
        fitting = [a.detach() for a in candidates if a.dim() == 2 and a.shape[1] == 6]
        if fitting and self.choose.random() < 0.4:
            return self.choose.choice(fitting)
        return torch.randn(self.choose.choice((2, 3, 4)), 6)

    def infer(self) -> None:
        number = self.choose.randrange(len(self.functions))
        x = self.input() if number == 1 else torch.randn(3, 6)
        with torch.no_grad():
            expected = self.functions[number](x)
            got = self.compiled[number](x)
        torch.testing.assert_close(got, expected)
        if self.choose.random() < 0.3:
            keep = [e.clone() for e in expected] if isinstance(expected, tuple) else expected.clone()
            self.held.append((got, keep))

    def forward(self) -> None:
        x = self.input()
        got, expected = self.run(x), self.reference(x)
        torch.testing.assert_close(got, expected)
        self.pending.append((got.square().mean(), expected.square().mean()))
        if self.choose.random() < 0.3:
            self.held.append((got, expected.detach().clone()))

    def backward(self) -> None:
        if self.pending:
            got, expected = self.pending.pop(self.choose.randrange(len(self.pending)))
            got.backward()
            expected.backward()
            self.check_gradients()

    def forget(self) -> None:
        kind = self.choose.randrange(4)
        if kind == 0:
            self.pending.clear()
        elif kind == 1:
            self.model.zero_grad()
            self.reference.zero_grad()
        elif self.held:
            self.held.pop(self.choose.randrange(len(self.held)))

    def step(self) -> None:
        self.pending.clear()  # what they saved is overwritten
        with torch.no_grad():
            for mine, theirs in zip(self.model.parameters(), self.reference.parameters(), strict=True):
                if mine.grad is not None and theirs.grad is not None:
                    mine.sub_(mine.grad, alpha=0.1)
                    theirs.sub_(theirs.grad, alpha=0.1)

    def check_gradients(self) -> None:
        for mine, theirs in zip(self.model.parameters(), self.reference.parameters(), strict=True):
            assert (mine.grad is None) == (theirs.grad is None)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, theirs.grad)

    def check(self) -> None:
        for got, expected in self.held:
            torch.testing.assert_close(list(got) if isinstance(got, tuple) else got, expected)
        for got, expected in self.pending:
            torch.testing.assert_close(got, expected)
        self.check_gradients()


@pytest.mark.parametrize(
    ("seed", "parts", "steps"),
    [
        (2, True, 40),
        *(
            pytest.param(seed, parts, 100, marks=pytest.mark.slow)
            for seed in range(4)
            for parts in (False, True)
        ),
    ],
)
def test_random_use(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch, seed: int, parts: bool, steps: int
) -> None:
    """Of whole programs, and of such as are recorded in partitions; of large inputs with odd seeds. It soon
    turns out that copies are not needed.
    """
    monkeypatch.setattr(copied, "LARGE", 1)
    monkeypatch.setattr(copied, "PATIENCES", (1, 2, 3))
    if seed % 2:
        monkeypatch.setattr(graph_inputs, "IN_PLACE", 1)
    session = Session(seed, parts)
    actions = [session.infer] * 4 + [session.forward] * 3 + [session.backward] * 3
    actions += [session.forget] * 2 + [session.step]
    for _ in range(steps):
        session.choose.choice(actions)()
        session.check()
    assert device.replays > steps // 5
