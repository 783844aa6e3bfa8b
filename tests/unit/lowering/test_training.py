"""What training needs: losses, dropout as eager mode draws it, optimizer steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowered import check, compiled

F = torch.nn.functional
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LOSSES: dict[str, Loss] = {
    "cross entropy": lambda x, t: F.cross_entropy(x, t),
    "weighted": lambda x, t: F.cross_entropy(
        x, t, weight=torch.arange(10.0), ignore_index=3, label_smoothing=0.1
    ),
    "soft labels": lambda x, t: F.cross_entropy(x, x.detach().softmax(1)),
    "planes": lambda x, t: F.nll_loss(
        x.log_softmax(1).reshape(2, 3, 2, 5), t.reshape(2, 3)[:, :2, None].expand(2, 2, 5) % 3
    ),
    "divergence": lambda x, t: F.kl_div(
        x.log_softmax(1), x.detach().roll(1, 0).softmax(1), reduction="batchmean"
    ),
    "binary": lambda x, t: F.binary_cross_entropy_with_logits(
        x, (x > 0).float(), pos_weight=torch.full((10,), 2.0)
    ),
    "huber": lambda x, t: (
        F.huber_loss(x, x.detach().roll(1, 0), delta=0.5) + F.smooth_l1_loss(x, x.detach().roll(1, 0))
    ),
    "labels": lambda x, t: F.multilabel_margin_loss(
        x, torch.cat([t[:, None], (t[:, None] - 5).clamp_min(-1), t.new_zeros(6, 8)], 1)
    ),
    "margins": lambda x, t: (
        F.triplet_margin_loss(x, x.roll(1, 0), x.roll(2, 0)) + F.hinge_embedding_loss(x, x.detach().sign())
    ),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    loss = LOSSES[name]
    x, target = torch.randn(6, 10), torch.randint(0, 10, (6,))
    run, record = compiled(lambda x, t: loss(x, t))
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    value = run(mine, target)
    torch.testing.assert_close(value, loss(theirs, target))
    value.backward()
    loss(theirs, target).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    assert not record.report.fallbacks, record.report.text()


@pytest.mark.quick(1)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_random_numbers_are_those_of_eager_mode(numerics: str) -> None:
    def fn(x: torch.Tensor) -> list[torch.Tensor]:
        dropped = F.dropout(x * 2, 0.3) + 1
        return [
            dropped,
            torch.rand_like(x) + x,
            x[torch.randperm(6)],
            torch.bernoulli(x.sigmoid()) * 2,
            F.dropout(x, 0.5),
        ]

    x = torch.randn(6, 10)
    run, record = compiled(fn, numerics=numerics)
    torch.manual_seed(3)
    actual = run(x)
    torch.manual_seed(3)
    torch.testing.assert_close(actual, fn(x))
    assert not record.report.fallbacks, record.report.text()


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"foreach": True, "lr": 1e-2}),
    "adamw amsgrad": (torch.optim.AdamW, {"foreach": True, "amsgrad": True}),
    "adam, one at a time": (torch.optim.Adam, {"foreach": False, "weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {"foreach": True, "lr": 0.1, "momentum": 0.9}),
    "rmsprop": (torch.optim.RMSprop, {"foreach": True}),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    twin = copy.deepcopy(model)
    mine, theirs = kind(model.parameters(), **options), kind(twin.parameters(), **options)
    run, record = compiled(mine.step)
    for _ in range(2):
        x = torch.randn(5, 4)
        for net, optimizer, step in ((model, mine, run), (twin, theirs, theirs.step)):
            optimizer.zero_grad()
            net(x).pow(2).sum().backward()
            step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert record.graphs and not record.report.fallbacks, record.report.text()


def test_dropout_needs_one_pass_beside_the_draw() -> None:
    record = check(lambda x: F.dropout(x, 0.0) * 2 + 1, torch.randn(4, 5))
    assert record.kinds() == ["Pointwise"]
    run, record = compiled(lambda x: F.dropout(x, 0.5).relu() + 1)
    run(torch.randn(4, 5))
    assert record.kinds() == ["ExternCall", "Pointwise"]


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_gradients_of_embeddings_may_be_sparse(scale: float) -> None:
    """What has no strides is a result of the backward as the eager operator made it."""
    mine = torch.nn.Embedding(10, 4, sparse=True)
    theirs = copy.deepcopy(mine)
    run, record = compiled(lambda table, i: (table(i).sin() * scale).sum())
    positions = torch.randint(0, 10, (3, 5))
    run(mine, positions).backward()
    (theirs(positions).sin() * scale).sum().backward()
    assert len(record.graphs) == 2
    assert mine.weight.grad is not None and mine.weight.grad.is_sparse
    torch.testing.assert_close(mine.weight.grad, theirs.weight.grad)


def test_what_is_written_in_a_part_is_saved_for_the_backward_with_its_strides() -> None:
    """The gates of a cell are parts of one matrix; sigmoid and tanh overwrite them."""
    cell = torch.nn.LSTMCell(6, 4)
    x = torch.randn(3, 6)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return cell(x, cell(x))

    found = []
    for run in (step, torch.compile(step, backend="polyfuse", options={"backends": ["interpreter"]})):
        given = x.clone().requires_grad_()
        h, c = run(given)
        grads = torch.autograd.grad((h * c).sum(), [given, *cell.parameters()])
        found.append([h.detach(), c.detach(), *grads])
    torch.testing.assert_close(found[1], found[0])
